"""OpenAI's batch API: creates batches, and runs them as deferred work that leaves other requests their places."""
