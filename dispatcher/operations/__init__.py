"""The gate's use cases over ports: submit, drain, execute, settle, reap. No AWS in sight."""
