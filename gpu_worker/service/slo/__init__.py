"""The worker's service level objectives: times of requests, shedding, and the Retry-After of refused requests."""
