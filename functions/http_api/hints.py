"""Says what is wrong with a URL that does not exist. The likely reason is a wrong base URL."""

from __future__ import annotations

_PATHS = ("/chat/completions", "/completions", "/embeddings", "/models", "/responses", "/files", "/batches", "/usage")


def hint(path: str) -> str:
    """Return a sentence about the path of a 404."""
    if path.startswith("/v1/v1/"):
        return "The path has /v1 twice: end the base URL with /v1 once."
    if any(path == each or path.startswith(f"{each}/") for each in _PATHS):
        return f"The path is /v1{path}: end the base URL with /v1."
    if any(path.endswith(each) and path != f"/v1{each}" for each in _PATHS):
        return "End the base URL with /v1, directly after the host."
    return "GET /docs lists the routes."
