"""The engine on transformers' continuous batching."""
