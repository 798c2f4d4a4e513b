"""The store in DynamoDB: one table, and no write but a conditional one. The only place that imports boto3."""
