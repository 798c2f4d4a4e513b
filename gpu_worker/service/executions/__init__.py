"""The executions on a worker: from the order to the report of the end."""
