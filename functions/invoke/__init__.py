"""headgate-invoke: OpenAI's body in a lambda.invoke."""
