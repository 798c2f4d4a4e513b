"""Bodies that are generated from the OpenAPI document, posted to the app with a gate in memory.

    python -m tests.support.generated_bodies --bodies 50000

prints how many of them got each status, and the memory of the process. It exits with 1 for an answer of 5xx, for an
error that is not in OpenAI's shape (it names the body), and if the memory grows by more than a quarter after the first
tenth of the bodies.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from dispatcher.model.fleet import Capability
from functions.http_api.openapi import OPERATIONS, document
from tests.support.asgi import Reply
from tests.support.world.memory_gate import Gate, make_gate
from tests.support.world.virtual_time import run
from tests.support.world.worker_client import Act

PATHS = [each.path for each in OPERATIONS if each.takes_idempotency_key]
ALL = tuple(sorted(Capability))
GROWTH_MAX = 1.25
EMBEDDINGS = "/v1/embeddings"
USUAL = {"/v1/responses": {"input": "hello"}}
"""Fields that a body gets if it does not have them. The document cannot say that `input` may only be missing beside
`previous_response_id`."""
WIDE = "wide"
"""The model whose worker has every capability. The model `m` has text only."""


def generated(path: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield bodies that the document allows for a route, each with a model that the gate has. The same seed gives the
    same bodies."""
    import schemathesis  # here: it takes seconds, and most tests that are collected beside these need none

    bodies: list[dict[str, Any]] = []
    schema = schemathesis.openapi.from_dict(document())

    @seeded(seed)
    @settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )  # fmt: skip
    @given(case=schema[path]["POST"].as_strategy())
    def collect(case: Any) -> None:
        bodies.append(case.body)

    collect()
    for number, body in enumerate(bodies):
        yield {**USUAL.get(path, {}), **body, "model": WIDE if number % 2 or path == EMBEDDINGS else "m"}


async def answers(gate: Gate, path: str, bodies: list[dict[str, Any]]) -> Counter[int]:
    """Post the bodies and return the number of answers by status. Raises AssertionError, which names the body."""
    gate.add_worker(WIDE, model=WIDE, capabilities=ALL)
    gate.workers.acts.extend(Act(token_s=0.01) for _ in bodies)  # the longest answer ends before its deadline
    caller, found = gate.caller(), Counter[int]()
    for body in bodies:
        try:
            raw = json.dumps(body).encode()
        except (TypeError, ValueError):  # a value that JSON does not have
            continue
        reply = await caller.post(path, raw=raw)
        found[reply.status] += 1
        assert _is_expected(reply), f"{path} answered {reply.status} {reply.body[:300]!r} to {raw[:2000]!r}"
    return found


def _is_expected(reply: Reply) -> bool:
    if reply.status == 200:
        return True
    return reply.status < 500 and bool(reply.error["message"])


def _memory_mb() -> float:
    return float(psutil.Process().memory_info().rss / 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=500)
    asked = parser.parse_args()
    found, done, before = Counter[tuple[str, int]](), 0, 0.0
    for batch in range(-(-asked.bodies // (asked.batch * len(PATHS)))):
        for path in PATHS:
            bodies = list(generated(path, asked.batch, batch))
            counts = run(_fresh(path, bodies))
            found.update({(path, status): count for status, count in counts.items()})
            done += len(bodies)
        if not before and done >= asked.bodies / 10:
            before = _memory_mb()
        sys.stdout.write(f"{done} bodies, {_memory_mb():.0f} MB\n")
    for (path, status), count in sorted(found.items()):
        sys.stdout.write(f"{path} {status}: {count}\n")
    after = _memory_mb()
    sys.stdout.write(f"memory after a tenth of the bodies {before:.0f} MB, at the end {after:.0f} MB\n")
    return int(after > before * GROWTH_MAX)


async def _fresh(path: str, bodies: list[dict[str, Any]]) -> Counter[int]:
    gate = await make_gate()
    found = await answers(gate, path, bodies)
    await gate.at_rest()
    return found


if __name__ == "__main__":
    sys.exit(main())
