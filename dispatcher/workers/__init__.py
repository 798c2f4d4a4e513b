"""The gate's client for workers: connections, and the protocol as bytes."""
