"""The GPU run's script: parts, budgets, the file of results and the arguments. No test here needs torch."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gpu_once
from benchmarks.gpu.run import Outcome, Part, Report, WrongResult, run_parts
from benchmarks.gpu.sizes import LARGE, TINY, Sizes, add_arguments, sizes_of

Work = Callable[[Report], Awaitable[None]]


async def succeed(report: Report) -> None:
    report.say("a line")
    report.record("figure", 1.5)


async def fail(report: Report) -> None:
    report.record("before", True)
    raise ValueError("no such thing")


async def find_a_wrong_result(report: Report) -> None:
    raise WrongResult("1 of 8 requests have different tokens")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results" / "gpu.json"


def run(out: Path, *work: Work, seconds: float = 1000.0, budget_s: float = 100.0) -> Report:
    report = Report(out, {"device": "cpu"})
    parts = [Part(f"{number}", budget_s, each) for number, each in enumerate(work)]
    run_parts(parts, report, seconds, monotonic_s=lambda: 0.0)
    return report


def read(out: Path) -> Any:
    return json.loads(out.read_text())


def outcomes(out: Path) -> list[str]:
    return [part["outcome"] for part in read(out)["parts"]]


def test_a_part_that_raises_is_reported_and_the_next_one_runs(out: Path) -> None:
    report = run(out, succeed, fail, succeed)
    assert outcomes(out) == ["done", "failed", "done"]
    failed = read(out)["parts"][1]
    assert failed["why"] == "ValueError: no such thing"
    assert failed["figures"] == {"before": True}
    assert report.failed


def test_an_error_of_a_task_group_is_reported_by_its_own_name(out: Path) -> None:
    async def fail_in_a_group(report: Report) -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [ValueError("the cause")])])

    assert run(out, fail_in_a_group).parts[0].why == "ValueError: the cause"


def test_a_wrong_result_is_a_failure(out: Path) -> None:
    report = run(out, find_a_wrong_result)
    assert (report.failed, report.parts[0].why) == (True, "1 of 8 requests have different tokens")


def test_parts_that_are_done_are_no_failure(out: Path) -> None:
    assert not run(out, succeed, succeed).failed


def test_the_file_is_valid_after_each_part_and_each_figure(out: Path) -> None:
    seen: list[list[dict[str, Any]]] = []

    async def look(report: Report) -> None:
        report.record("number", len(seen))
        seen.append(read(out)["parts"])

    run(out, look, fail, look)
    assert [part["outcome"] for part in seen[1]] == ["done", "failed", "running"]
    assert [part["figures"] for part in seen[1]] == [{"number": 0}, {"before": True}, {"number": 1}]
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name]


def test_a_part_is_left_out_without_half_of_its_budget(out: Path) -> None:
    report = run(out, succeed, seconds=49.0)
    assert report.parts[0].outcome is Outcome.LEFT_OUT
    assert report.parts[0].why == "49 s are left, and the part may need 100 s"
    assert not report.failed


def test_a_part_is_cut_at_its_budget_and_keeps_what_it_has(out: Path) -> None:
    async def hang(report: Report) -> None:
        report.record("so far", 1)
        await asyncio.Event().wait()

    report = run(out, hang, succeed, budget_s=0.01)
    assert outcomes(out) == ["cut", "done"]
    assert report.parts[0].figures == {"so far": 1}
    assert not report.failed


def test_a_timeout_of_the_parts_own_is_a_failure(out: Path) -> None:
    async def time_out(report: Report) -> None:
        raise TimeoutError("the manager did not answer")

    assert run(out, time_out).parts[0].why == "TimeoutError: the manager did not answer"


def test_a_stopped_run_says_by_what_and_is_valid(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr("os._exit", left.append)

    async def be_stopped(report: Report) -> None:
        report.record("so far", 1)
        gpu_once.stop_run(report, signal.SIGTERM, None)
        content = read(out)
        assert (content["stopped"], content["parts"][0]["outcome"]) == ("SIGTERM", "cut")
        assert content["parts"][0]["figures"] == {"so far": 1}

    assert not run(out, be_stopped).failed
    assert left == [128 + signal.SIGTERM]


@pytest.fixture
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the script run as if the libraries were there; no part may begin."""
    monkeypatch.setattr(gpu_once, "wrong_transformers", lambda: None)
    monkeypatch.setattr(
        gpu_once, "make_bench", lambda _options: SimpleNamespace(device="cpu", on_cuda=False, sizes=TINY)
    )
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.usefixtures("no_libraries")
def test_a_run_of_one_second_says_what_it_left_out(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_once.main(["--seconds", "1", "--out", str(out)]) == 0
    assert outcomes(out) == ["left out"] * len(gpu_once.PARTS)
    printed = capsys.readouterr().out
    for entry in gpu_once.PARTS.values():
        assert f"-- {entry.title}: left out" in printed


@pytest.mark.usefixtures("no_libraries")
def test_a_failed_part_is_the_exit_status(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = gpu_once.Entry("a part that does not exist", 10.0, "nowhere:nothing")
    monkeypatch.setattr(gpu_once, "PARTS", {"broken": entry})
    assert gpu_once.main(["--out", str(out)]) == 1
    assert "ModuleNotFoundError" in capsys.readouterr().out


def test_all_parts_fit_into_the_run() -> None:
    assert sum(entry.budget_s for entry in gpu_once.PARTS.values()) <= gpu_once.SECONDS


def test_every_part_has_its_module() -> None:
    folder = Path(gpu_once.__file__).parent / "gpu"
    for entry in gpu_once.PARTS.values():
        module, function = entry.work.split(":")
        assert f"async def {function}(bench: Bench, report: Report)" in (folder / f"{module}.py").read_text()


@pytest.mark.parametrize("found", ["5.17.0", None])
def test_another_transformers_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: str | None
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(gpu_once, "version", version)
    assert gpu_once.main([]) == 2
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1
    assert "make gpu-wheels" in sentence
    assert gpu_once.read_pin() in sentence


def test_the_pinned_version_is_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_once, "version", lambda _name: gpu_once.read_pin())
    assert gpu_once.wrong_transformers() is None


def parse(*arguments: str, base: Sizes = LARGE) -> Sizes:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return sizes_of(parser.parse_args(arguments), base)


def test_every_size_is_an_argument() -> None:
    found = parse("--batch", "64", "--quiet-per-s", "1.5", "--victims", "8", "9", "10", "--run-prompt", "3", "4")
    assert (found.batch, found.quiet_per_s, found.victims, found.run_prompt) == (64, 1.5, (8, 9, 10), (3, 4))
    assert found.layers == LARGE.layers
    assert parse(base=TINY) == TINY


@pytest.mark.parametrize("sizes", [LARGE, TINY])
def test_the_largest_requests_fit_into_the_cache_and_the_context(sizes: Sizes) -> None:
    fits = min(sizes.context, sizes.kv_tokens // 2)
    longest = [
        max(sizes.equal_prompts) + sizes.equal_outputs,
        *(
            getattr(sizes, f"{name}_prompt")[1] + getattr(sizes, f"{name}_output")[1]
            for name in ("run", "quiet", "flood", "premium", "background")
        ),
        max(sizes.victims),
    ]
    assert max(longest) <= fits
    assert len(sizes.equal_prompts) == 8


@pytest.mark.parametrize("sizes", [LARGE, TINY])
def test_a_flood_is_more_than_fits(sizes: Sizes) -> None:
    assert sizes.flood_requests >= 3 * sizes.batch


def test_the_script_is_one_of_the_benchmarks() -> None:
    from benchmarks.__main__ import HELPERS

    assert "gpu_once" not in HELPERS
