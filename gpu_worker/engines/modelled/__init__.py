"""The modelled engine: real policies and batching, modelled step times, placeholder tokens."""
