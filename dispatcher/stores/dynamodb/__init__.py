"""The store in DynamoDB. It has one table, and every write is conditional. Only this folder imports boto3."""
