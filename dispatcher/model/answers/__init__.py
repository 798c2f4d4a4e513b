"""Answers in OpenAI's form: whole, in pieces, refused, or missing. Pure."""
