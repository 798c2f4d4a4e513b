"""The queue of detached executions, and where its messages end that nobody could handle.

A message is only a hint: it names an invocation and its attempt, never a prompt. The sweep takes back what a lost
message would have started, so a dead letter needs no handling; it is kept for whoever looks into why.
"""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_sqs as sqs
from constructs import Construct

VISIBILITY_FACTOR = 6
"""Lambda's own advice: a message must not come back while a throttled function still retries it."""
RECEIVES_MAX = 5
"""More than the three attempts of an invocation: throttled receives count here too."""


class ExecutionQueue(Construct):
    """`consumer_timeout`: the timeout of the function that consumes it."""

    def __init__(self, scope: Construct, construct_id: str, *, consumer_timeout: Duration) -> None:
        super().__init__(scope, construct_id)
        self.dead_letters = sqs.Queue(
            self,
            "DeadLetters",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=Duration.days(14),
        )
        self.queue = sqs.Queue(
            self,
            "Queue",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=Duration.days(1),
            visibility_timeout=Duration.seconds(VISIBILITY_FACTOR * consumer_timeout.to_seconds()),
            dead_letter_queue=sqs.DeadLetterQueue(queue=self.dead_letters, max_receive_count=RECEIVES_MAX),
        )
