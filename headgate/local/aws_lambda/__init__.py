"""The local AWS Lambda: Invoke API, execution environments, queue polling and schedules."""
