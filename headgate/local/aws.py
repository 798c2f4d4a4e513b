"""The local AWS in the caller's event loop: the gateway, the Lambda functions, queue pollers and schedules.

aws = LocalAws(children, environment, moto_url=...)
url = await aws.start()    # the value for AWS_ENDPOINT_URL
...
await aws.stop()           # the caller stops the children
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import httpx

from dispatcher.ports import Clock, Ids
from dispatcher.processes.bootstrap import RealClock, RealIds
from headgate.local.aws_gateway import Gateway
from headgate.local.aws_lambda.functions import function_specs
from headgate.local.aws_lambda.invocation import INIT_TIMEOUT_S, FunctionSpec, LambdaAnswer, LambdaRequest
from headgate.local.aws_lambda.invoke_api import InvokeApi, LambdaFunction
from headgate.local.aws_lambda.pool import EVENT_RETRY_DELAYS_S, FunctionPool, InvocationQueue, TooManyRequests
from headgate.local.aws_lambda.schedule import Schedule, tick
from headgate.local.aws_lambda.sqs_poller import QueueMapping, SqsQueue, poll
from headgate.local.embedded_server import EmbeddedServer, log_failure
from headgate.machine.processes import Children

logger = logging.getLogger(__name__)

SWEEP_EVERY_S = 5.0
"""In the cloud it is a minute; a demo must not wait that long."""


@dataclass(frozen=True)
class Wiring:
    """Functions, and the queues and schedules that invoke them."""

    functions: Sequence[FunctionSpec]
    queues: Sequence[QueueMapping] = ()
    schedules: Sequence[Schedule] = ()


def headgate_wiring(environment: Mapping[str, str], init_timeout_s: float = INIT_TIMEOUT_S) -> Wiring:
    """Return headgate's functions, queue and schedule, as the CDK app deploys them.

    `environment`: variables that every handler gets; HEADGATE_QUEUE_URL names the queue. `init_timeout_s`: seconds that
    a handler may take to load.
    """
    queue_url = environment["HEADGATE_QUEUE_URL"]
    return Wiring(
        function_specs(environment, init_timeout_s),
        queues=[QueueMapping(queue_url, "headgate-execute", batch_size=1)],
        schedules=[Schedule("headgate-sweep", SWEEP_EVERY_S)],
    )


class LocalAws:
    """The local AWS. `wiring`: default headgate's. `port` 0 takes a free port. `dynamodb_url`: default moto."""

    def __init__(
        self,
        children: Children,
        environment: Mapping[str, str],
        *,
        moto_url: str,
        dynamodb_url: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        wiring: Wiring | None = None,
        event_retry_delays_s: Sequence[float] = EVENT_RETRY_DELAYS_S,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._wiring = wiring or headgate_wiring(environment)
        self._clock: Clock = clock or RealClock()
        self._ids: Ids = ids or RealIds()
        self._moto_url = moto_url
        self._functions = [
            self._function(spec, children, environment, event_retry_delays_s) for spec in self._wiring.functions
        ]
        self._by_name = {function.pool.spec.name: function for function in self._functions}
        endpoints = {} if dynamodb_url is None else {"dynamodb": dynamodb_url}
        self._gateway = Gateway(InvokeApi(self._functions, self._ids.new), moto_url, endpoints)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(30.0), trust_env=False)
        self._server = EmbeddedServer(self._gateway.app, host, port)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        """Serve, poll and send scheduled events from now on. Return the endpoint's URL.

        Raises OSError if the port is in use.
        """
        address = await self._server.start()
        work = [self._poll(mapping) for mapping in self._wiring.queues]
        work += [self._tick(schedule) for schedule in self._wiring.schedules]
        for task in map(asyncio.create_task, work):
            task.add_done_callback(log_failure)
            self._tasks.append(task)
        return f"http://{address}"

    async def prewarm(self, function_name: str, count: int) -> None:
        """Start `count` environments of a function and wait until their handlers are loaded."""
        await self._by_name[function_name].pool.prewarm(count)

    async def warm(self, api_key: str) -> None:
        """Invoke the functions that tenants call once, so that the first call of a tenant waits for no cold start.

        The requests name no model and no invocation that exist. So they are refused, and cost the tenant nothing.
        """
        requests = {
            "headgate-invoke": {"api_key": api_key, "model": "warm-up", "prompt": "warm-up"},
            "headgate-result": {"api_key": api_key, "id": "warm-up"},
        }
        await asyncio.gather(*(self.invoke(name, json.dumps(each).encode()) for name, each in requests.items()))

    async def invoke(self, function_name: str, payload: bytes) -> LambdaAnswer:
        """Invoke a function with a new request id, as an event source does. Raises TooManyRequests."""
        return await self._by_name[function_name].pool.invoke(LambdaRequest(self._ids.new(), payload))

    async def events_done(self, function_name: str) -> None:
        """Wait until the function's asynchronous invocations have ended, with their retries."""
        await self._by_name[function_name].events.done()

    async def stop(self) -> None:
        """Cut open connections, kill environments and drop queued events. Repeatable."""
        await asyncio.gather(*(function.events.stop() for function in self._functions))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._server.stop(), *(function.pool.stop() for function in self._functions))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._gateway.close()
        await self._http.aclose()

    def _function(
        self, spec: FunctionSpec, children: Children, environment: Mapping[str, str], retry_delays_s: Sequence[float]
    ) -> LambdaFunction:
        pool = FunctionPool(spec, children, environment, self._clock.now)
        return LambdaFunction(pool, InvocationQueue(pool, retry_delays_s=retry_delays_s, sleep=self._clock.sleep))

    async def _poll(self, mapping: QueueMapping) -> None:
        queue = SqsQueue(mapping.queue_url, self._moto_url, self._http)
        await poll(mapping, queue, partial(self.invoke, mapping.function_name))

    async def _tick(self, schedule: Schedule) -> None:
        async def fire(event: bytes) -> None:
            try:
                answer = await self.invoke(schedule.function_name, event)
            except TooManyRequests:
                return  # the function still works on the event before
            if answer.function_error is not None:
                logger.warning("scheduled %s failed: see its log", schedule.function_name)

        await tick(schedule, fire, sleep=self._clock.sleep, now=self._clock.now, new_id=self._ids.new)
