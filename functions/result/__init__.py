"""headgate-result: what became of an invocation."""
