"""The stores behind dispatcher/ports.py: SQLite (one machine), DynamoDB."""
