"""`headgate trace` writes the service's own calls as a trace, for `headgate simulate` and its --fit.

The calls come from the gate's log, so no process has to run, or from files of OpenTelemetry's spans or of
`vllm bench serve --save-detailed`. The rows are in
order of time and have no prompt and no answer.
"""

from __future__ import annotations

import asyncio
import csv
import sys
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.model.errors import ConfigurationError, StoreUnavailable
from dispatcher.model.tenants import name_of
from dispatcher.monitor.follower import open_followers
from dispatcher.monitor.recording import RecordedCall, Recording
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock
from dispatcher.settings.config import Config
from headgate.cli.terminal.gate_store import Data, PoolName, with_store
from headgate.cli.terminal.serving import either, interrupted
from headgate.workloads.spans import read_calls

COLUMNS = (
    "arrival_s", "tenant", "input_tokens", "output_tokens",
    "interaction", "app", "model", "tier", "ttft_s", "latency_s",
)  # fmt: skip
_POLL_S = 1.0


def trace(
    spans: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of OTLP in JSON, or of vLLM's benchmark; default: the gate's log."),
    ] = None,
    data: Data = None,
    pool: PoolName = "",
    worker: Annotated[
        str, typer.Option(help="Only the attempts of this worker, from their orders on, as an engine's log for --fit.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Write what the log has and end.")] = False,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Write numbers in place of names.")] = False,
) -> None:
    """Write the service's calls, or those of OpenTelemetry's spans or of vLLM's benchmark, as CSV to standard output.

    The log has the calls since its last snapshot. Without --once, later ones are written as they end, until Ctrl-C.
    """
    writer = _TraceWriter(anonymous)
    if spans:
        if data is not None or pool or worker or once:
            raise ConfigurationError("files of spans need no --data, --pool, --worker or --once")
        files = [read_calls(path) for path in spans]
        writer.write(sorted(call for file in files for call in file.calls))
        if left_out := sum(file.left_out for file in files):
            sys.stderr.write(f"note: Calls that failed or have impossible figures are left out: {left_out}.\n")
        return

    async def run(store: Store, config: Config) -> None:
        followers = open_followers(store, config, RealClock())
        recordings = [Recording(worker) for _ in followers]
        for follower, recording in zip(followers, recordings, strict=True):
            follower.watch(recording)

        async def follow() -> None:
            while True:
                try:
                    for follower in followers:
                        await follower.catch_up()
                except StoreUnavailable as error:
                    if once:
                        raise
                    sys.stderr.write(f"headgate: not up to date: {error}\n")
                writer.write(_rows(recordings, min(each.horizon for each in recordings)))
                if once:
                    return
                await asyncio.sleep(_POLL_S)

        task = asyncio.ensure_future(follow())
        await either(task, interrupted())
        if not task.cancelled():
            task.result()
        writer.write(_rows(recordings, inf))
        _note_left_out(recordings)
        if writer.is_empty:
            _note_nothing(recordings, worker)

    with_store(data, run, pool)


def _rows(recordings: Sequence[Recording], until: float) -> list[RecordedCall]:
    """Return the rows of all shards, in order of time."""
    return sorted((call for each in recordings for call in each.take(until)), key=lambda call: call.begun_at)


def _note_left_out(recordings: Sequence[Recording]) -> None:
    unanswered = sum(each.unanswered for each in recordings)
    interrupted_calls = sum(each.interrupted for each in recordings)
    if unanswered:
        sys.stderr.write(f"note: {unanswered} calls ended without an answer, and are left out.\n")
    if interrupted_calls:
        sys.stderr.write(f"note: the ends of {interrupted_calls} calls were cut from the log before they were read.\n")


_NAMED_MAX = 10
"""The most workers that a message lists."""


def _note_nothing(recordings: Sequence[Recording], worker: str) -> None:
    others = sorted(set().union(*(each.others for each in recordings)))
    if worker and others:
        more = f" and {len(others) - _NAMED_MAX} more" if len(others) > _NAMED_MAX else ""
        known = f"; it has those of {', '.join(others[:_NAMED_MAX])}{more}"
        sys.stderr.write(f"note: The log has no answered call of worker {worker[:40]!r}{known}.\n")
    else:
        sys.stderr.write("note: The log has no answered call since its last snapshot.\n")


class _TraceWriter:
    """Writes rows to standard output. Times count from the first row, which has the header before it."""

    def __init__(self, is_anonymous: bool) -> None:
        self._csv = csv.writer(sys.stdout, lineterminator="\n")
        self._is_anonymous = is_anonymous
        self._numbers: dict[str, dict[str, str]] = {}
        self._first_at: float | None = None

    @property
    def is_empty(self) -> bool:
        return self._first_at is None

    def write(self, calls: Iterable[RecordedCall]) -> None:
        for call in calls:
            if self._first_at is None:
                self._csv.writerow(COLUMNS)
                self._first_at = call.begun_at
            has_times = call.first_token_s is not None
            self._csv.writerow((
                _seconds(call.begun_at - self._first_at),
                self._name("tenant", name_of(call.tenant)),
                *(call.input_tokens, call.output_tokens),
                self._name("interaction", call.interaction),
                self._name("app", call.app),
                self._name("model", call.model),
                call.tier,
                _seconds(call.first_token_s) if call.first_token_s is not None else "",
                _seconds(call.latency_s) if has_times else "",
            ))  # fmt: skip
        sys.stdout.flush()

    def _name(self, kind: str, name: str) -> str:
        """Return the name, or its number among the names of its kind."""
        if not name or not self._is_anonymous:
            return name
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(name, f"{kind}-{len(numbers) + 1}")


def _seconds(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
