"""The gate: who may enter, in which order, and what it is charged. See ARCHITECTURE.md."""
