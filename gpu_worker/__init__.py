"""The GPU worker: processes that run a model and share its tokens fairly inside the batching loop."""
