"""Bodies that the OpenAPI document allows: each is answered, or refused in OpenAI's shape."""

from __future__ import annotations

import pytest

from tests.support.duration import at_depth
from tests.support.generated_bodies import PATHS, answers, generated
from tests.support.world.memory_gate import Gate

BODIES = at_depth(600, 2_000)


@pytest.mark.parametrize("path", PATHS)
async def test_each_body_has_an_answer_or_an_error_of_the_client(gate: Gate, path: str) -> None:
    bodies = list(generated(path, BODIES // len(PATHS), seed=0))
    found = await answers(gate, path, bodies)
    assert len(bodies) == BODIES // len(PATHS)
    assert found[200] > 0
