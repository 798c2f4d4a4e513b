"""headgate-execute: runs detached invocations from the queue."""
