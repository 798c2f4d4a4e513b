"""Three models on two workers, as processes: every model is served, and workers swap while requests wait."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.local.test_serve import usage
from tests.support.local.stack import ROOT, charges, serve

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

MODELS = ("chat", "code", "draft")
FLEET = str(ROOT / "examples" / "fleet.yaml")


def test_three_models_on_two_workers(tmp_path: Path) -> None:
    served = serve(tmp_path / "data", "--fleet", FLEET)
    client = served.openai(served.api_keys["default"])
    try:
        assert sorted(model.id for model in client.models.list()) == sorted(MODELS)
        asked = [model for _ in range(4) for model in MODELS]

        def ask(model: str) -> str:
            answer = client.completions.create(model=model, prompt="once", max_tokens=20)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 20
            return answer.model

        with ThreadPoolExecutor(len(asked)) as threads:
            answered = list(threads.map(ask, asked))
        assert Counter(answered) == dict.fromkeys(MODELS, 4)
        used = charges(lambda: usage(served), len(asked))
        assert used.output_tokens == 20 * len(asked), "each request is charged once"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="unknown", prompt="once", max_tokens=1)
    finally:
        assert served.stop() == 0
