"""The gate's use cases, over ports and without AWS: submit, follow, execute, results, tenants, usage, limits."""
