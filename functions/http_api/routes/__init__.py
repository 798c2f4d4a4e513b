"""OpenAI's routes: a handler parses the request, calls an operation and answers."""
