"""A paged engine in virtual time: KV blocks are allocated as tokens are generated, requests can be preempted."""
