"""headgate-execute: runs detached invocations from SQS."""
