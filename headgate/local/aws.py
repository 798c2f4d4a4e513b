"""The local AWS, in the caller's event loop: gateway, Lambda functions, and what invokes them by itself.

aws = LocalAws(children, environment, moto_url=...)
url = await aws.start()    # what AWS_ENDPOINT_URL wants
...
await aws.stop()           # the children are stopped by whoever made them
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import httpx

from dispatcher.bootstrap import RealClock, RealIds
from dispatcher.ports import Clock, Ids
from headgate.local.aws_gateway import EmbeddedServer, Gateway, embedded_server
from headgate.local.aws_lambda.environment import INIT_TIMEOUT_S, FunctionSpec, LambdaAnswer, LambdaRequest
from headgate.local.aws_lambda.functions import function_specs
from headgate.local.aws_lambda.invoke_api import InvokeApi, LambdaFunction
from headgate.local.aws_lambda.pool import EVENT_RETRY_DELAYS_S, EventQueue, FunctionPool, TooManyRequests
from headgate.local.aws_lambda.schedule import Schedule, tick
from headgate.local.aws_lambda.sqs_poller import QueueMapping, SqsQueue, poll
from headgate.local.processes import Children

logger = logging.getLogger(__name__)

SWEEP_EVERY_S = 5.0
"""A minute in the cloud; here a demo should not wait for it."""


@dataclass(frozen=True)
class Wiring:
    """Functions, and what invokes them besides callers."""

    functions: Sequence[FunctionSpec]
    queues: Sequence[QueueMapping] = ()
    schedules: Sequence[Schedule] = ()


def headgate_wiring(environment: Mapping[str, str], init_timeout_s: float = INIT_TIMEOUT_S) -> Wiring:
    """As the CDK app deploys it. `environment`: what every handler gets; HEADGATE_QUEUE_URL names the queue.

    `init_timeout_s`: seconds that a handler may take to load.
    """
    queue_url = environment["HEADGATE_QUEUE_URL"]
    return Wiring(
        function_specs(environment, init_timeout_s),
        queues=[QueueMapping(queue_url, "headgate-execute", batch_size=1)],
        schedules=[Schedule("headgate-sweep", SWEEP_EVERY_S)],
    )


class LocalAws:
    """`wiring`: headgate's own unless given. `port`: 0 takes a free one. `dynamodb_url`: where not moto."""

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
        self._address = (host, port)
        self._functions = [
            self._function(spec, children, environment, event_retry_delays_s) for spec in self._wiring.functions
        ]
        self._by_name = {function.pool.spec.name: function for function in self._functions}
        endpoints = {} if dynamodb_url is None else {"dynamodb": dynamodb_url}
        self._gateway = Gateway(InvokeApi(self._functions, self._ids.new), moto_url, endpoints)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(30.0), trust_env=False)
        self._server: EmbeddedServer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        """Serves, polls and ticks from here on; the endpoint's URL. Raises OSError when the port is in use."""
        listening = _listen(*self._address)
        self._server = embedded_server(self._gateway.app)
        work = [self._server.serve(sockets=[listening])]
        work += [self._poll(mapping) for mapping in self._wiring.queues]
        work += [self._tick(schedule) for schedule in self._wiring.schedules]
        for task in map(asyncio.create_task, work):
            task.add_done_callback(_report)
            self._tasks.append(task)
        return f"http://{self._address[0]}:{listening.getsockname()[1]}"

    async def prewarm(self, function_name: str, count: int) -> None:
        """Have this many environments loaded before the first invocation."""
        await self._by_name[function_name].pool.prewarm(count)

    async def invoke(self, function_name: str, payload: bytes) -> LambdaAnswer:
        """As an event source does: under an id of its own. Raises TooManyRequests."""
        return await self._by_name[function_name].pool.invoke(LambdaRequest(self._ids.new(), payload))

    async def events_done(self, function_name: str) -> None:
        """Until its asynchronous invocations have ended, retries and all."""
        await self._by_name[function_name].events.done()

    async def stop(self) -> None:
        """Open connections are cut, environments killed, queued events dropped. Repeatable."""
        await asyncio.gather(*(function.events.stop() for function in self._functions))
        for task in self._tasks[1:]:
            task.cancel()
        if self._server is not None:
            self._server.force_exit = self._server.should_exit = True
        await asyncio.gather(*(function.pool.stop() for function in self._functions))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._gateway.close()
        await self._http.aclose()

    def _function(
        self, spec: FunctionSpec, children: Children, environment: Mapping[str, str], retry_delays_s: Sequence[float]
    ) -> LambdaFunction:
        pool = FunctionPool(spec, children, environment, self._clock.now)
        return LambdaFunction(pool, EventQueue(pool, retry_delays_s=retry_delays_s, sleep=self._clock.sleep))

    async def _poll(self, mapping: QueueMapping) -> None:
        queue = SqsQueue(mapping.queue_url, self._moto_url, self._http)
        await poll(mapping, queue, partial(self.invoke, mapping.function_name))

    async def _tick(self, schedule: Schedule) -> None:
        async def fire(event: bytes) -> None:
            try:
                answer = await self.invoke(schedule.function_name, event)
            except TooManyRequests:
                return  # still busy with the one before
            if answer.function_error is not None:
                logger.warning("%s failed: its log says why", schedule.function_name)

        await tick(schedule, fire, sleep=self._clock.sleep, now=self._clock.now, new_id=self._ids.new)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a part of the local AWS ended", exc_info=task.exception())


def _listen(host: str, port: int) -> socket.socket:
    """Named TCP outright: asyncio leaves Nagle's algorithm on for a socket of protocol 0, 40 ms an answer."""
    listening = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(512)
    except OSError:
        listening.close()
        raise
    return listening
