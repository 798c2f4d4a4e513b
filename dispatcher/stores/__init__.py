"""The stores behind dispatcher/ports.py: memory (simulations), SQLite (one machine), DynamoDB."""
