"""Local models: a tiny Llama with random weights for demos and tests, and tokenizing for any Hugging Face model."""
