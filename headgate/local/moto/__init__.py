"""moto as the local DynamoDB, SQS and CloudWatch, with patches where it is not exact."""
