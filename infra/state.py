"""The state of the gate: a DynamoDB table without an index, the bucket of files, two secrets, and a queue.

The bucket has the files of the batch API. The queue has the detached executions, and a dead-letter queue the messages
that could not be handled.

It repeats the layout of dispatcher/stores/layout.py, because infra imports nothing of the dispatcher.
tests/infra/test_state.py compares the two.

A message of the queue is only a hint: it names an invocation and its attempt, never a prompt. If a message is lost, the
attempt does not begin; its worker returns it within seconds, and the gate dispatches the invocation again. So a dead
letter needs no handling. It is kept so that an operator can find the cause.
"""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.checks import acknowledge

_PARTITION, _SORT, _EXPIRY = "pk", "sk", "ttl"
_SECRET_CHARS = 48
_FILES_KEPT = Duration.days(31)
"""A day longer than the gate keeps a file (`files_kept_s` in dispatcher/operations/limits.py)."""
_KEPT = RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
"""RetainExceptOnCreate: deletion of the stack keeps the resource. If the stack's creation fails, its rollback removes
the resource, which is still empty."""


class StateTable(Construct):
    """The table: billed on demand, restorable to any second of the last 35 days, kept when the stack is deleted. The
    bucket is kept too, and its objects expire. The worker secret is shared by the gate's processes and the
    workers, and the operator's token by the fronts."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.table = dynamodb.Table(
            self,
            "Table",
            partition_key=dynamodb.Attribute(name=_PARTITION, type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name=_SORT, type=dynamodb.AttributeType.STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            time_to_live_attribute=_EXPIRY,
            # The table holds prompts and answers. AWS's key of this account: its use is in CloudTrail, and it needs no
            # operation.
            encryption=dynamodb.TableEncryption.AWS_MANAGED,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            # No deletion protection: it would also stop the rollback of a stack whose creation failed, so that the
            # table had to be unprotected by hand. Instead no role of this stack may delete the table, and DynamoDB
            # keeps a backup of a deleted table with point-in-time recovery for 35 days.
            deletion_protection=False,
            removal_policy=_KEPT,
        )
        self.files = s3.Bucket(
            self,
            "Files",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            lifecycle_rules=[
                s3.LifecycleRule(expiration=_FILES_KEPT, abort_incomplete_multipart_upload_after=Duration.days(1))
            ],
            removal_policy=_KEPT,
        )
        reason = "The gate alone reads and writes the bucket, for a tenant and a file that its log names."
        acknowledge(self.files, {"AwsSolutions-S1": reason})
        self.worker_secret = self._secret(
            "WorkerSecret",
            "headgate: the gate signs work orders with it, the workers verify them",
            "An operator rotates it in three steps, a day apart, without a restart (docs/operators.md).",
        )
        self.operator_token = self._secret(
            "OperatorToken",
            "headgate: opens the read-only page GET /operator of every front",
            "People type it in. An operator replaces it and restarts the fronts.",
        )

    def _secret(self, construct_id: str, description: str, not_rotated: str) -> secretsmanager.Secret:
        """Make a random secret. `not_rotated`: why Secrets Manager does not rotate it by itself."""
        secret = secretsmanager.Secret(
            self,
            construct_id,
            description=description,
            generate_secret_string=secretsmanager.SecretStringGenerator(
                password_length=_SECRET_CHARS, exclude_punctuation=True
            ),
            removal_policy=RemovalPolicy.DESTROY,
        )
        acknowledge(secret, {"AwsSolutions-SMG4": not_rotated})
        return secret


_VISIBILITY_FACTOR = 6
"""AWS's advice for Lambda: a message must not reappear while a throttled function still retries it."""
_RECEIVES_MAX = 5
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
            visibility_timeout=Duration.seconds(_VISIBILITY_FACTOR * consumer_timeout.to_seconds()),
            dead_letter_queue=sqs.DeadLetterQueue(queue=self.dead_letters, max_receive_count=_RECEIVES_MAX),
        )
