"""The results of vLLM's benchmark as calls, and a sentence for each file that has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.monitor.recording import RecordedCall
from headgate.workloads.arrivals import TraceError
from headgate.workloads.spans import read_calls

RESULTS: dict[str, Any] = {
    "backend": "vllm", "model_id": "m", "completed": 2, "start_times": [11.5, 10.0, 12.0], "input_lens": [5, 7, 9],
    "output_lens": [3, 2, 0], "ttfts": [0.25, 0.5, 0.0], "itls": [[0.125, 0.125], [0.25], []],
    "errors": ["", "", "Connection reset"], "generated_texts": ["a", "b", ""],
}  # fmt: skip


def read(folder: Path, **changes: object) -> list[RecordedCall]:
    path = folder / "bench.json"
    path.write_text(json.dumps({name: each for name, each in {**RESULTS, **changes}.items() if each is not None}))
    return read_calls(path).calls


def test_a_request_that_failed_is_left_out(tmp_path: Path) -> None:
    assert read(tmp_path) == [
        RecordedCall(10.0, "all", "", "m", "", "", 7, 2, 0.5, 0.75),
        RecordedCall(11.5, "all", "", "m", "", "", 5, 3, 0.25, 0.5),
    ]
    assert len(read(tmp_path, errors=["no", "", ""])) == 1
    assert len(read(tmp_path, errors=None)) == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"start_times": None}, r"not the results of one run of vllm bench serve .*\(start_times: Field required\)"),
        ({"ttfts": [0.1, -0.1, 0.0]}, r"\(ttfts.1: "),
        ({"itls": [[0.1], [float("nan")], []]}, r"\(itls.1.0: "),
        ({"input_lens": [5, 7]}, "are not of the same length"),
        ({"output_lens": [0, 0, 0]}, "no request has tokens and ended without an error"),
    ],
)
def test_other_results_are_one_sentence(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TraceError, match=says) as refused:
        read(tmp_path, **changes)
    assert "bench.json" in str(refused.value)
