"""moto as the local DynamoDB, SQS and CloudWatch, patched where it is not exact."""
