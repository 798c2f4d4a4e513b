"""The Lambda functions. They share one asset; each has a role of its own. The handlers are in functions/."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Aws, Duration, RemovalPolicy, Stack
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_event_sources as event_sources
from aws_cdk import aws_logs as logs
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from headgate.deployment.model import Deployment
from infra import partitions
from infra.network import PRIVATE, Network
from infra.observability import log_group
from infra.roles import (
    allow_admin,
    allow_gate,
    allow_network,
    allow_operator_page,
    allow_result,
    allow_scaling,
    allow_task_protection,
    allow_traces,
    function_role,
    invoker_policy,
)
from infra.state import ExecutionQueue, StateTable

RUNTIME = lambda_.Runtime.PYTHON_3_14  # infra/bundle.py installs wheels for this version
_LONGEST = Duration.minutes(15)
"""The longest timeout that Lambda allows, and the longest deadline of an invocation (dispatcher/settings/config.py)."""
_EVENT_AGE = Duration.hours(1)
"""How long Lambda keeps an Event invocation. While a pool starts its first worker, an attempt may last _LONGEST and
find none; then there are two more, a minute and two minutes later."""
_LIVE = "live"
"""The alias by which tenants invoke a function, as in `headgate-invoke:live`."""
_WEB_ADAPTER_ACCOUNT, _WEB_ADAPTER_LAYER = "753240598075", "LambdaAdapterLayerArm64:27"
"""AWS's Lambda Web Adapter 1.0.0 in the commercial regions. The regions in China use other accounts."""
_FRONT_PORT = "8080"
_WAITING_MAX = 10
"""Beside a front in Lambda: calls of one tenant that wait, each in an execution. An account has 1,000: 100 for detached
calls, about 400 for streams that workers answer, and 500 for the waiting calls of 50 tenants. Without this bound, one
tenant's queue (1,000) would take them all."""
_EXECUTIONS_MAX = 100
"""Detached executions that run at once. Below the account's 1,000, so that waiting callers get functions too."""


@dataclass(frozen=True)
class Spec:
    """One function. `recurs`: its execution may start another one.

    No concurrency is reserved: an account must keep 100 executions unreserved, and a new one has fewer than this.
    """

    name: str
    handler: str
    timeout: Duration
    memory_mb: int
    recurs: bool = False


_INVOKE = Spec("invoke", "functions.invoke.handler.handler", _LONGEST, 512)
_RESULT = Spec("result", "functions.result.handler.handler", Duration.seconds(30), 512)
EXECUTE = Spec("execute", "functions.execute.handler.handler", _LONGEST, 512, recurs=True)
_SWEEP = Spec("sweep", "functions.sweep.handler.handler", Duration.minutes(1), 512)
_ADMIN = Spec("admin", "functions.admin.handler.handler", Duration.seconds(30), 512)
_FRONT = Spec("front", "run.sh", _LONGEST, 1024)


_BESIDE_THE_GATE = {
    _INVOKE.name: (partitions.ACCEPTED,),
    EXECUTE.name: (partitions.EXECUTED,),
    _SWEEP.name: (partitions.EXECUTED,),
    _FRONT.name: (partitions.ACCEPTED, partitions.HTTP),
}
"""What these functions do with the table beside what each process does that may decide."""


class Functions(Construct):
    """All functions, connected to the table, the queue and the schedule. `environment`: the variables of all of them.
    `traces`: further variables of those that write spans; empty: none does."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        state: StateTable,
        execution: ExecutionQueue,
        worker_secret: secretsmanager.Secret,
        code: lambda_.Code,
        network: Network,
        deployment: Deployment,
        environment: Mapping[str, str],
        traces: Mapping[str, str],
    ) -> None:
        super().__init__(scope, construct_id)
        self._traces = traces
        self._code, self._network, self._deployment = code, network, deployment
        self._worker_secret = worker_secret
        self._environment = dict(environment)
        self._logs: dict[str, logs.LogGroup] = {}
        self._roles: dict[str, iam.Role] = {}
        self.invoke, self.execute, self.sweep = (
            self._gate_function(spec, state, execution) for spec in (_INVOKE, EXECUTE, _SWEEP)
        )
        self.result, result_role = self._function(_RESULT)
        allow_result(result_role, state)
        self.admin, admin_role = self._function(_ADMIN)
        allow_admin(admin_role, state)
        self.front: lambda_.Function | None = None
        self.front_log: logs.LogGroup | None = None
        if deployment.front == "lambda":
            self.front = self._gate_function(_FRONT, state, execution)
            self.front_log = self._logs[_FRONT.name]
            allow_operator_page(self._roles[_FRONT.name], state)
            self.front.add_environment("HEADGATE_OPERATOR_TOKEN_ARN", state.operator_token.secret_arn)
            self._serve_http(self.front)
        self._for_tenants = [self._live(_INVOKE, self.invoke), self._live(_RESULT, self.result)]
        self._allow_invokers()
        invoker_policy(self, "InvokerPolicy", self._for_tenants, "the roles of tenants' programs")
        invoker_policy(self, "AdministratorPolicy", [self.admin], "administrators of tenants")
        self._consume(execution)
        self._sweep_each_minute()

    @property
    def all(self) -> list[lambda_.Function]:
        fronts = [] if self.front is None else [self.front]
        return [*fronts, self.invoke, self.result, self.execute, self.sweep, self.admin]

    def allow_scaling(self, service_arns: Sequence[str], clusters: Iterable[ecs.Cluster]) -> None:
        """Let the sweep set the number of workers and choose those that stay. Let those that accept a request start the
        first one."""
        for name, role in self._roles.items():
            if name != EXECUTE.name:
                allow_scaling(role, service_arns)
        allow_task_protection(self._roles[_SWEEP.name], clusters)

    def _gate_function(self, spec: Spec, state: StateTable, execution: ExecutionQueue) -> lambda_.Function:
        function, role = self._function(spec, self._network)
        allow_gate(role, state, execution.queue, *_BESIDE_THE_GATE[spec.name])
        allow_network(role)
        for name, value in self._traces.items():
            function.add_environment(name, value)
        if self._traces:
            allow_traces(role)
        self._roles[spec.name] = role
        return function

    def _function(self, spec: Spec, network: Network | None = None) -> tuple[lambda_.Function, iam.Role]:
        """Make a function and its role. `network`: where it reaches gate processes and workers, if it needs them."""
        title = spec.name.capitalize()
        log = self._logs[spec.name] = log_group(self, f"{title}Log", self._deployment)
        worker_secret = None if spec is _ADMIN else self._worker_secret
        role = function_role(self, f"{title}Role", log_group=log, worker_secret=worker_secret)
        function = lambda_.Function(
            self,
            title,
            function_name=f"{Stack.of(self).stack_name}-{spec.name}",
            runtime=RUNTIME,
            architecture=lambda_.Architecture.ARM_64,
            handler=spec.handler,
            code=self._code,
            timeout=spec.timeout,
            memory_size=spec.memory_mb,
            environment=self._environment,
            role=role,
            log_group=log,
            tracing=lambda_.Tracing.ACTIVE,
            recursive_loop=lambda_.RecursiveLoop.ALLOW if spec.recurs else lambda_.RecursiveLoop.TERMINATE,
            current_version_options=lambda_.VersionOptions(removal_policy=RemovalPolicy.RETAIN),
            vpc=network.vpc if network else None,
            vpc_subnets=PRIVATE if network else None,
            security_groups=[network.function] if network else None,
        )
        return function, role

    def _serve_http(self, front: lambda_.Function) -> None:
        """Add the Lambda Web Adapter, because the managed Python runtime does not stream. The adapter runs the ASGI app
        as a server and streams its answers."""
        arn = f"arn:{Aws.PARTITION}:lambda:{Aws.REGION}:{_WEB_ADAPTER_ACCOUNT}:layer:{_WEB_ADAPTER_LAYER}"
        front.add_layers(lambda_.LayerVersion.from_layer_version_arn(self, "WebAdapter", arn))
        front.add_environment("AWS_LAMBDA_EXEC_WRAPPER", "/opt/bootstrap")
        front.add_environment("AWS_LWA_INVOKE_MODE", "response_stream")
        front.add_environment("AWS_LWA_PORT", _FRONT_PORT)
        front.add_environment("HEADGATE_FRONT", "lambda")
        for function in (front, self.invoke):
            function.add_environment("HEADGATE_LIMITS", json.dumps({"waiting_executions_max": _WAITING_MAX}))
        front.add_environment("AWS_LWA_READINESS_CHECK_PATH", "/health")

    def _live(self, spec: Spec, function: lambda_.Function) -> lambda_.Alias:
        """Make the alias by which tenants invoke a function. It is the version of the last deployment, and an operator
        can point it to an earlier one (docs/operations.md).

        Its asynchronous invocations need settings of their own. There is no dead-letter queue, because it would keep
        the whole payload with prompt and API key. An alarm counts the events that Lambda drops, and `headgate-result`
        answers that it does not know them.
        """
        title = f"{spec.name.capitalize()}Live"
        alias = lambda_.Alias(self, title, alias_name=_LIVE, version=function.current_version)
        alias.configure_async_invoke(retry_attempts=2, max_event_age=_EVENT_AGE)
        return alias

    def _allow_invokers(self) -> None:
        """Allow the configured principals to invoke what tenants use."""
        for number, arn in enumerate(self._deployment.allowed_invokers):
            for alias in self._for_tenants:
                alias.add_permission(f"Invoker{number}", principal=iam.ArnPrincipal(arn))

    def _consume(self, execution: ExecutionQueue) -> None:
        # Without a leader, the function that ends an execution also dispatches the next invocation and sends its
        # message. The chain is as long as the backlog. Lambda would stop it after 16 executions; RecursiveLoop.ALLOW
        # prevents that. Each of its executions is an invocation that was charged.
        source = event_sources.SqsEventSource(
            execution.queue, batch_size=1, report_batch_item_failures=True, max_concurrency=_EXECUTIONS_MAX
        )
        self.execute.add_event_source(source)

    def _sweep_each_minute(self) -> None:
        rule = events.Rule(self, "EachMinute", schedule=events.Schedule.rate(Duration.minutes(1)))
        # A late sweep is useless, because the next one does its work: it has the gate decide what is due by the clock.
        target = targets.LambdaFunction(self.sweep, retry_attempts=0, max_event_age=Duration.minutes(1))
        rule.add_target(target)
        self.sweep.configure_async_invoke(retry_attempts=0, max_event_age=Duration.minutes(1))
