"""The engine room: workers that run a model and share its tokens fairly inside the batching loop."""
