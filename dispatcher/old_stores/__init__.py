"""Where tenants, invocations and workers are kept: in memory (exact, for tests and simulation) or in DynamoDB."""
