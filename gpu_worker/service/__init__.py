"""The worker as a service: HTTP server, agent, executions, metrics."""
