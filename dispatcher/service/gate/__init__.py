"""The processes of the gate: one leads and decides for the others, any other can take over."""
