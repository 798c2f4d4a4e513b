"""The queue of detached executions, and the dead-letter queue of the messages that could not be handled.

A message is only a hint: it names an invocation and its attempt, never a prompt. If a message is lost, the attempt does
not begin; its worker returns it within seconds, and the gate dispatches the invocation again. So a dead letter needs no
handling. It is kept so that an operator can find the cause.
"""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_sqs as sqs
from constructs import Construct

VISIBILITY_FACTOR = 6
"""AWS's advice for Lambda: a message must not reappear while a throttled function still retries it."""
RECEIVES_MAX = 5
"""More than the three attempts of an invocation, because a throttled receive counts too."""


class ExecutionQueue(Construct):
    """The queue and its dead-letter queue. `consumer_timeout` is the timeout of the function that reads it."""

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
