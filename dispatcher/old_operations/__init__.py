"""The gate's use cases, over ports and without AWS: submit, drain, execute, settle, reap."""
