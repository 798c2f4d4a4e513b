"""Waiting times: what a shard remembers to announce them, and how it estimates them. Pure."""
