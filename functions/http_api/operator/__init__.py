"""The operator's page, `GET /operator`: read-only, for administrators with the operator's token."""
