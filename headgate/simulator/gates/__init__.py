"""The stages before a simulated engine or cluster: the gate, throttling and shedding."""
