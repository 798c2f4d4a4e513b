"""A small valid instance of a JSON schema, for the engine without a model."""
