"""`headgate tenants` and what it needs: administration, keys, a file applied, usage."""
