"""The gate's use cases: submit, follow, execute, results, tenants, usage and limits. They use ports and no AWS."""
