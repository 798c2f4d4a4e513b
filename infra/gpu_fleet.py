"""The GPU fleet: a stub. This release deploys no GPU, no worker and no network for them.

What is real here is the secret that gate and workers will share, because the functions already need it: with it the
gate signs what a worker may execute. A later release deploys the workers into this construct, with the VPC that makes
them reachable from the dispatcher alone. Until then every invocation is refused for want of a worker, unless somebody
runs `python -m gpu_worker` against this stack's table, with this secret, where the functions can reach it.
"""

from __future__ import annotations

from aws_cdk import Acknowledgment, CfnOutput, RemovalPolicy, Validations
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

STATUS = "stub: no GPU worker is deployed by this release; a later release deploys the fleet"
SECRET_CHARS = 48


class GpuFleet(Construct):
    """A stub that says so, in an output of the stack and in the template's metadata."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.worker_secret = secretsmanager.Secret(
            self,
            "WorkerSecret",
            description="headgate: the gate signs work orders with it, the workers check them",
            generate_secret_string=secretsmanager.SecretStringGenerator(
                password_length=SECRET_CHARS, exclude_punctuation=True
            ),
            removal_policy=RemovalPolicy.DESTROY,
        )
        reason = "Rotation needs workers that accept two secrets at once; they come with the fleet."
        Validations.of(self.worker_secret).acknowledge(Acknowledgment(id="AwsSolutions-SMG4", reason=reason))
        CfnOutput(self, "Status", value=STATUS, description="State of the GPU fleet")
        self.node.add_metadata("headgate:gpu-fleet", STATUS)
