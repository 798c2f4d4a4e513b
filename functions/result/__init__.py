"""headgate-result: the status and the answer of an invocation."""
