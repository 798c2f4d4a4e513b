"""vLLM as a worker's engine: its own OpenAI server as a child process, with our scheduler in it (vllm/scheduler.py).

The worker forwards every request at once; the scheduler inside decides which request gets the next token. It reads the
dispatcher's fields from `vllm_xargs`, where no client can set them. The server's end is the engine's end: all requests
fail with `engine_failed`, and engines/supervised.py starts another.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.calibration import CALIBRATION_TENANT, TRAINING_TEXT, calibration_requests
from gpu_worker.engines.interface import (
    EngineError,
    EngineStats,
    Finished,
    RefusedByPolicy,
    WorkOrder,
)
from gpu_worker.engines.openai.client import IDLE_CONNECTIONS_MAX, IDLE_S
from gpu_worker.engines.openai.forwarding import Forwarding, Stream
from gpu_worker.engines.openai.server_api import ServerOptions
from gpu_worker.engines.vllm.arguments import (
    ARGUMENT_PREFIX,
    Arguments,
    capabilities,
    checked,
    served_name,
    server_words,
)
from gpu_worker.engines.vllm.figures import KnownFigures
from gpu_worker.engines.vllm.process import ServerProcess, fall_asleep, wake, weight_bytes
from gpu_worker.engines.vllm.protocol import Expired, check_end

_START_S = 1800.0
"""Enough to read a model of hundreds of gigabytes."""
SILENCE_S = 86_400.0
"""A request may wait in the scheduler for as long as its deadline allows; the watchdog sees a server that hangs."""
POLL_S = 0.25
_POLL_WAIT_S = 5.0
_HEALTH_URL = "http://vllm/health"
_STATS_URL = "http://vllm/headgate/stats"
_TOKENIZE_URL = "http://vllm/tokenize"
_NOTHING = EngineStats(0, 0, 0.0, {})


@dataclass(frozen=True, slots=True)
class VllmShape:
    """`batch`: sequences in a batch at most. `swap_bytes`: host memory for swapped KV. `calibrate`: measure the machine
    at the start. `arguments`: of vLLM's server; they replace the worker's defaults. `sleep_level`: 1 or 2; 0: it cannot
    sleep (process.py)."""

    batch: int = 64
    swap_bytes: int = 0
    calibrate: bool = True
    arguments: Sequence[str] = ()
    sleep_level: int = 0


@dataclass(frozen=True, slots=True)
class VllmModel:
    """`path`: for vLLM. `name`: for tenants."""

    path: str
    name: str
    reads_images: bool = False

    @classmethod
    def find(cls, model: str | None, home: Path, arguments: Arguments) -> VllmModel:
        """Return the model: `--model` of the arguments, or a folder, or one built under `home` (random_llama.py).

        Raises FileNotFoundError for a folder without a model, ValueError for two models.
        """
        given = arguments.get("--model")
        if given and model is not None:
            raise ValueError("the model is named twice: name it once, after --")
        if given:
            return cls(given, served_name(arguments, given), _reads_images(Path(given)))
        from gpu_worker.engines.random_llama import model_folder  # needs torch

        folder, name = model_folder(model, home)
        return cls(str(folder), arguments.get("--served-model-name") or name, _reads_images(folder))


class VllmEngine(Forwarding):
    """`policy`, `tiers`, `applications`: for the scheduler in the server, so the name and plain values."""

    def __init__(
        self,
        *,
        model: str | None,
        home: Path,
        policy: str = "tiered:vtc",
        tiers: Mapping[str, Any] | None = None,
        applications: Mapping[str, str] | None = None,
        shape: VllmShape | None = None,
    ) -> None:
        """Raises ValueError for arguments that the worker cannot allow, and what VllmModel.find and weight_bytes
        raise."""
        self.shape = shape or VllmShape()
        self._arguments = checked(self.shape.arguments)
        self._model = VllmModel.find(model, home, self._arguments)
        self.sleep_bytes: int | None = None
        if self.shape.sleep_level:  # the space for swapped KV stays too
            weights = weight_bytes(Path(self._model.path)) if self.shape.sleep_level == 1 else 0
            self.sleep_bytes = weights + self.shape.swap_bytes
        self._settings = {
            "policy": policy,
            "tiers": dict(tiers or {}),
            "applications": dict(applications or {}),
            "send_stats": True,
            "trust_client_fields": True,  # only the worker reaches the server
        }
        self._words = server_words(
            self._arguments,
            model=self._model.path,
            name=self._model.name,
            batch=self.shape.batch,
            swap_bytes=self.shape.swap_bytes,
            headgate=self._settings,
            sleeps=bool(self.shape.sleep_level),
        )
        self._process = ServerProcess()
        self._figures, self._since = KnownFigures(), 0
        """What the server reported, and the version of it."""
        self._http: httpx.AsyncClient | None = None
        self._polling: asyncio.Task[None] | None = None
        super().__init__(self._server_options())

    async def start(self) -> None:
        """Start the server, and measure the machine. Raises RuntimeError if it ends before it serves, and what
        Forwarding.start raises."""
        self._figures, self._since = KnownFigures(), 0
        await self._process.start(self._words, developer_routes=bool(self.shape.sleep_level))
        self._http = httpx.AsyncClient(transport=self._transport(), timeout=_POLL_WAIT_S, trust_env=False)
        await super().start()
        await self._measure_text()
        self._polling = asyncio.create_task(self._poll())
        if self.shape.calibrate and Endpoint.COMPLETION in self.facts.capabilities:
            await self._calibrate()

    async def stop(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await super().stop()
        if self._http is not None:
            await self._http.aclose()
        await self._process.stop()

    async def fall_asleep(self) -> None:
        """See SleepableEngine."""
        assert self._http is not None  # noqa: S101 - `start` has set it
        await fall_asleep(self._http, self.shape.sleep_level)

    async def wake(self) -> None:
        """See SleepableEngine."""
        assert self._http is not None  # noqa: S101 - `start` has set it
        await wake(self._http, self.shape.sleep_level)

    def stats(self) -> EngineStats:
        """Return the stats of at most half a second ago; the figures of a tenant among very many may be older."""
        return self._figures.stats() or _NOTHING

    def _server_options(self) -> ServerOptions:
        return ServerOptions(
            "http://vllm/v1",
            model=self._model.name,
            capabilities=capabilities(self._arguments, reads_images=self._model.reads_images),
            max_loras=self._arguments.max_loras,
            continuous_usage=True,
            silence_s=SILENCE_S,
            wait_s=_START_S,
            probe=False,  # the calibration generates tokens
            transport=self._transport,
            fields=server_fields,
            check_choice=check_end,
        )

    def _transport(self) -> httpx.AsyncBaseTransport:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS_MAX, keepalive_expiry=IDLE_S
        )
        return httpx.AsyncHTTPTransport(uds=str(self._process.socket), limits=limits)

    async def _connect(self) -> str | None:
        if (code := self._process.exit_code) is not None:
            raise RuntimeError(f"vLLM's server ended with exit code {code}; the log above has its reason")
        return await super()._connect()

    async def _read(self, stream: Stream) -> None:
        try:
            await super()._read(stream)
        except EngineError as error:
            if error.code == "generation_failed" and await self._has_failed():
                self._is_dead = True
                raise EngineError("engine_failed", "the engine failed while it worked on this request") from None
            raise

    def _end(self, stream: Stream, last: Finished | EngineError) -> None:
        if isinstance(last, Expired):
            last = Finished("aborted", stream.input_tokens, stream.output_tokens)
        super()._end(stream, last)

    async def _has_failed(self) -> bool:
        """Return whether the server or its engine core has ended. A server that only hangs is for the watchdog."""
        assert self._http is not None  # noqa: S101 - `start` has set it
        try:
            return (await self._http.get(_HEALTH_URL)).status_code != 200
        except httpx.TimeoutException:
            return False
        except httpx.HTTPError:
            return True

    async def _measure_text(self) -> None:
        """Measure how many bytes of English text a token has."""
        assert self._http is not None  # noqa: S101 - `start` has set it
        assert self._server is not None  # noqa: S101
        answer = await self._http.post(_TOKENIZE_URL, json={"model": self.facts.model, "prompt": TRAINING_TEXT})
        if answer.status_code == 200:
            bytes_per_token = len(TRAINING_TEXT.encode()) / max(1, int(answer.json()["count"]))
            self.options = replace(self.options, bytes_per_token=bytes_per_token)
            self._server = self._server._replace(facts=replace(self.facts, bytes_per_token=bytes_per_token))

    async def _calibrate(self) -> None:
        """Run requests one at a time, from whose steps the scheduler learns the machine's times.

        The first one samples with log probabilities. vLLM compiles these parts of its sampler when a request needs them
        first, which took from 10 to 80 s on a CPU. The watchdog would take this for a server that hangs.
        """
        context_tokens = self.facts.context_tokens
        fields: dict[str, Any] = {"logprobs": 1, "temperature": 1.0}
        step_tokens = self._arguments.get("--max-num-batched-tokens")
        steps = int(step_tokens) if step_tokens and step_tokens.isdecimal() else context_tokens
        for request, tokens in calibration_requests(context_tokens, steps):
            with suppress(RefusedByPolicy):  # by a policy that limits requests
                async for _ in self.generate(replace(request, body={**request.body, **fields, "prompt": tokens})):
                    pass
            fields = {}

    async def _poll(self) -> None:
        """Read the stats again and again. A server that does not answer leaves them as they are."""
        assert self._http is not None  # noqa: S101 - `start` has set it
        while True:
            with suppress(httpx.HTTPError, ValueError):
                answer = await self._http.get(_STATS_URL, params={"since": self._since})
                if (report := answer.json()) is not None:
                    self._figures.apply(report)
                    self._figures.forget(CALIBRATION_TENANT)
                    self._since = int(report["version"])
            await asyncio.sleep(POLL_S)


def server_fields(request: WorkOrder) -> dict[str, Any]:
    """Return the dispatcher's fields for the server's body. Requests for embeddings have no `vllm_xargs`."""
    if request.endpoint is Endpoint.EMBEDDINGS:
        return {}
    fields: dict[str, Any] = {
        "tenant": request.terms.tenant,
        "weight": request.weight,
        "tier": request.tier.value,
        "app": request.terms.app,
        "stage": request.stage,
        "interaction": request.terms.interaction,
    }
    if request.is_open:
        fields |= {"output_max": request.max_tokens, "output_expected": request.likely_tokens}
    if request.timeout_s < math.inf:
        fields["timeout_s"] = request.timeout_s
    body: dict[str, Any] = {"vllm_xargs": {ARGUMENT_PREFIX + name: value for name, value in fields.items()}}
    return body | {"cache_salt": request.cache_salt} if request.cache_salt else body


def _reads_images(folder: Path) -> bool:
    """Return whether the model's configuration has a part for images. A model that is no local folder: False."""
    try:
        return "vision_config" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
