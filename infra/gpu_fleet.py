"""The GPU fleet: a stub. This release deploys no GPU and no worker.

Only the secret that the gate shares with the workers is real, because the gate's processes need it: the gate signs with
it what a worker may execute. A later release deploys the workers into this construct. Until then every invocation is
refused because there is no worker, unless you run `python -m gpu_worker`, and `python -m dispatcher` beside it, with
this stack's table and this secret, in its network (infra/network.py).
"""

from __future__ import annotations

from aws_cdk import Acknowledgment, CfnOutput, RemovalPolicy, Validations
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

STATUS = "stub: no GPU worker is deployed by this release; a later release deploys the fleet"
SECRET_CHARS = 48


class GpuFleet(Construct):
    """A stub. An output of the stack and the template's metadata say that it is one."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.worker_secret = secretsmanager.Secret(
            self,
            "WorkerSecret",
            description="headgate: the gate signs work orders with it, the workers verify them",
            generate_secret_string=secretsmanager.SecretStringGenerator(
                password_length=SECRET_CHARS, exclude_punctuation=True
            ),
            removal_policy=RemovalPolicy.DESTROY,
        )
        reason = "Rotation needs workers that accept two secrets at once. They come with the fleet."
        Validations.of(self.worker_secret).acknowledge(Acknowledgment(id="AwsSolutions-SMG4", reason=reason))
        CfnOutput(self, "Status", value=STATUS, description="State of the GPU fleet")
        self.node.add_metadata("headgate:gpu-fleet", STATUS)
