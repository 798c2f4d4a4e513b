"""An engine that forwards each request to an OpenAI-compatible HTTP server."""
