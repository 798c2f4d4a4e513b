"""The stack: one construct for each unit that is deployed."""

from __future__ import annotations

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.api import Api
from infra.functions import EXECUTE, Functions
from infra.gpu_fleet import GpuFleet
from infra.observability import Observability, Watched
from infra.queue import ExecutionQueue
from infra.state import State


class HeadgateStack(Stack):
    """headgate in one account and region. `code` is the functions' asset (infra/bundle.py).

    All physical names begin with `name`, so that one account and region can have several stacks.
    """

    def __init__(self, scope: Construct, construct_id: str, *, name: str, code: lambda_.Code) -> None:
        super().__init__(
            scope, construct_id, stack_name=name, description="headgate: fair shares of a GPU fleet for every tenant"
        )
        state = State(self, "State")
        execution = ExecutionQueue(self, "Execution", consumer_timeout=EXECUTE.timeout)
        fleet = GpuFleet(self, "GpuFleet")
        functions = Functions(
            self, "Functions", state=state, execution=execution, worker_secret=fleet.worker_secret, code=code
        )
        api = Api(self, "Api", front=functions.front)
        watched = Watched(
            rest_api=api.rest_api,
            functions=functions.all,
            sweep=functions.sweep,
            invoke=functions.invoke,
            queue=execution.queue,
            dead_letters=execution.dead_letters,
            table=state.table,
        )
        Observability(self, "Observability", watched=watched)
        CfnOutput(self, "TableName", value=state.table.table_name, description="HEADGATE_TABLE for the command line")
