"""Finds the tenant of an API key, and administers tenants and their keys."""
