"""The store in DynamoDB: one table, conditional writes and transactions. The only place that imports boto3."""
