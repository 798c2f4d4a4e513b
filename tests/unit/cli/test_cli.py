"""The command line from outside: exit codes, one line for bad input, and a trace that is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from dispatcher.model.errors import ConfigurationError
from headgate.cli.terminal.output import INTERRUPTED, PIPE_CLOSED, exit_code
from headgate.machine.options import FleetOptions
from headgate.machine.proxies import bypass_proxies
from tests.support.hang_guard import HANG_S
from tests.support.warm_commands import run_warm
from tests.unit.cli.command import headgate as in_process

ROOT = Path(__file__).parents[3]


def headgate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **environment}  # noqa: S108 - no file is made there
    return run_warm(*arguments, environment=clean)


@pytest.mark.parametrize("command", ["serve", "local"])
def test_arguments_after_the_separator_are_those_of_the_engine(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[FleetOptions] = []

    async def start(options: FleetOptions, _json: bool) -> None:
        started.append(options)

    monkeypatch.setattr(f"headgate.cli.{command}._serve", start)
    words = [command, "--engine", "vllm", "--slots", "4", "--", "--model", "M", "--", "--json"]
    assert in_process(*words) == 0
    assert (started[0].slots, started[0].engine_arguments) == (4, ("--model", "M", "--", "--json"))


def test_help_and_version() -> None:
    ended = headgate("--help")
    assert ended.returncode == 0
    assert all(name in ended.stdout for name in ("serve", "demo", "local", "invoke", "tenants", "top", "usage"))
    assert headgate("--version").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bogus",), "bogus"),
        (("demo", "--seconds", "soon"), "--seconds"),
        (("demo", "--engine", "steam"), "--engine"),
        (("local", "--port", "99999"), "--port"),
        (("local", "--slots", "0"), "--slots"),
        (("local", "--fronts", "0"), "--fronts"),
        (("local", "--order", "steam"), "--order"),
        (("serve", "--engine", "steam"), "--engine"),
        (("serve", "--tenants", "nowhere.yaml"), "nowhere.yaml"),
        (("serve", "--engine", "modelled", "--", "--tensor-parallel-size", "4"), "--engine modelled takes none"),
        (("local", "--engine", "openai", "--", "--quantization", "fp8"), "--engine openai takes none"),
        (("local", "stop", "--", "--quantization", "fp8"), "`headgate local stop` takes no arguments after --"),
        (("serve", "--engine", "vllm", "--tensor-parallel-size", "4"), "--tensor-parallel-size"),
        (("top", "--once", "--data", "nowhere"), "headgate serve --data nowhere"),
        (("usage", "--from", "soon"), "--from"),
        (("demo", "--quiet", "nowhere.csv"), "nowhere.csv"),
        (("invoke", "hello"), "HEADGATE_BASE_URL"),
        (("invoke",), "prompt"),
        (("invoke", "--result", "x"), "--lambda"),
        (("invoke", "x", "--lambda", "--key", "k"), "--model"),
        (("invoke", "x", "--completion", "--system", "y"), "--system"),
        (("invoke", "x", "--base-url", "http://127.0.0.1:9/v1", "--key", "ké"), "api_key"),
        (("invoke", "x", "--base-url", "http://127.0.0.1:9/v1", "--key", "k", "--model", "m", "--seed", "z"), "--seed"),
        (
            ("invoke", "x", "--base-url", "http://127.0.0.1:9", "--key", "k", "--model", "m", "--temperature", "nan"),
            "JSON",
        ),
        (("invoke", "hello", "--base-url", "http://127.0.0.1:9/v1", "--key", "k"), "cannot be reached"),
        (("tenants", "create", "Not A Name"), "a-z"),
        (("tenants", "create", "a", "--weight", "-1"), "weight"),
        (("tenants", "create", "a", "--tier", "royal"), "royal"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    ended = headgate(*arguments, AWS_DEFAULT_REGION="us-east-1", AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x")
    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert ended.stdout == ""


@pytest.mark.parametrize("arguments", [("tenants", "list"), ("invoke", "x", "--lambda", "--model", "m", "--key", "k")])
def test_a_region_that_is_not_named_is_asked_for(arguments: tuple[str, ...]) -> None:
    ended = headgate(*arguments, AWS_CONFIG_FILE="/nonexistent", AWS_EC2_METADATA_DISABLED="true")
    assert ended.returncode == 2, ended.stderr
    assert "region" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_forgotten_data_folder_is_hinted_at() -> None:
    ended = headgate("tenants", "list", AWS_CONFIG_FILE="/nonexistent", AWS_EC2_METADATA_DISABLED="true")
    assert ended.returncode == 2, ended.stderr
    assert "region; check AWS_DEFAULT_REGION" in ended.stderr
    assert "give its folder with --data" in ended.stderr


def test_a_home_that_cannot_be_made_is_named() -> None:
    ended = headgate("local", "--engine", "modelled", "--port", "0", "--home", f"{__file__}/under")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(f"headgate: {__file__}/under")


def test_a_trace_too_short_is_refused_before_anything_starts(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,1,1\n")
    ended = headgate("demo", "--quiet", str(trace), "--engine", "modelled")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"{trace}: 1 requests" in ended.stderr


def test_a_reader_that_has_seen_enough() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = (
        "import sys, headgate.cli.terminal.output as e, headgate.cli.terminal.output as o; o.guard_output();"
        "sys.exit(e.exit_code(lambda: sys.stdout.write('x' * 100_000)))"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, timeout=HANG_S, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (PIPE_CLOSED, b"")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
@pytest.mark.parametrize("arguments", [("--help",), ("reproduce", "--list")])
def test_a_full_disk_is_one_sentence(arguments: tuple[str, ...]) -> None:
    with FULL.open("wb") as full:
        ended = _headgate_to(full.fileno(), *arguments)
    assert (ended.returncode, ended.stderr.decode()) == (
        2, "headgate: standard output cannot be written: No space left on device\n",
    )  # fmt: skip


def test_a_closed_standard_output_is_one_sentence() -> None:
    close = 'import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, "-m", "headgate.cli", "--version"])'
    command = [sys.executable, "-c", close]
    ended = subprocess.run(command, stderr=subprocess.PIPE, cwd=ROOT, timeout=HANG_S, check=False)
    assert (ended.returncode, ended.stderr.decode()) == (
        2, "headgate: standard output cannot be written: Bad file descriptor\n",
    )  # fmt: skip


def test_help_for_a_reader_that_has_seen_enough() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = _headgate_to(writing, "--help")
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (PIPE_CLOSED, b"")


def test_a_message_that_cannot_be_written_changes_no_exit_code() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "headgate.cli", "bogus"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=writing, cwd=ROOT, timeout=HANG_S, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stdout) == (2, b"")


@pytest.mark.parametrize(
    ("written", "seen"),
    [("'caf\\xe9 \\u2026'", b"caf\\xe9 \\u2026"), ("'\\udcff'", b"\\udcff"), ("'a' * 200_000", b"a" * 200_000)],
)
def test_characters_that_the_output_lacks_are_escapes(written: str, seen: bytes) -> None:
    code = f"import sys, headgate.cli.terminal.output as o; o.guard_output(); sys.stdout.write({written})"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=HANG_S, check=False, env=environment
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, seen, b"")


def test_a_proxy_that_needs_another_package_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    missing = ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")
    assert exit_code(_fault(missing)) == 2
    assert "ALL_PROXY" in capsys.readouterr().err
    with pytest.raises(ImportError, match="something else"):
        exit_code(_fault(ImportError("something else")))


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "a.example, 127.0.0.1"}, "a.example,127.0.0.1,localhost,::1"),
        ({"no_proxy": "b.example", "NO_PROXY": "a.example"}, "b.example,a.example,localhost,127.0.0.1,::1"),
    ],
)
def test_this_machine_is_reached_without_a_proxy(given: dict[str, str], hosts: str) -> None:
    environment = {"HTTP_PROXY": "http://proxy:1", **given}
    bypass_proxies(environment)
    assert environment == {"HTTP_PROXY": "http://proxy:1", "NO_PROXY": hosts, "no_proxy": hosts}


def _headgate_to(output: int, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "headgate.cli", *arguments]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, cwd=ROOT, timeout=HANG_S, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("local", "--model", ""), "--model"),
        (("serve", "--model", " \t"), "--model"),
        (("serve", "--model", "a\x1b[2Jb"), "--model"),
        (("serve", "--engine", "openai", "--url", ""), "--url"),
        (("tenants", "create", "a", "--slo-class", "nope"), "there is no class 'nope'"),
        (("tenants", "create", "a", "--slo-class", " "), "there is no class ' '"),
        (("tenants", "rotate-key", "a", "--slo-class", "nope"), "HEADGATE_SLO_CLASSES"),
        (("tenants", "create", "a", "--model", ""), "model's name"),
        (("tenants", "create", "a", "--model", "m\n"), "model's name"),
        (("tenants", "set", "a"), "a: nothing to change"),
    ],
)
def test_names_that_nothing_has_are_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("HEADGATE_SLO_CLASSES", raising=False)
    assert in_process(*arguments) == 2
    written = capsys.readouterr()
    assert message in written.err
    assert (written.out, written.err.count("\n")) == ("", 1)


def _fault(error: BaseException) -> Callable[[], object]:
    def run() -> object:
        raise error

    return run


def test_each_ending_has_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(lambda: None) == 0
    assert exit_code(_fault(typer.Exit(1))) == 1
    assert exit_code(_fault(KeyboardInterrupt())) == INTERRUPTED
    assert capsys.readouterr().err == ""
    assert exit_code(_fault(PermissionError(13, "Permission denied", "a/file"))) == 2
    assert capsys.readouterr().err == "headgate: a/file: Permission denied\n"
    assert exit_code(_fault(ConfigurationError("two\nlines"))) == 2
    assert capsys.readouterr().err == "headgate: two lines\n"


@pytest.mark.parametrize("mistake", [ValueError("ours"), OSError(9, "Bad file descriptor"), AssertionError()])
def test_our_own_mistakes_keep_their_traceback(mistake: Exception) -> None:
    with pytest.raises(type(mistake)):
        exit_code(_fault(mistake))


def test_a_wrong_trace_is_named_by_file_line_and_column(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,tenant,input_tokens,output_tokens\n0,a,1,1\n-3,a,1,1\n")
    ended = headgate("demo", "--flood", str(trace), "--engine", "modelled")
    assert ended.returncode == 2
    assert f"{trace}, line 3, column 'arrival_s'" in ended.stderr
    assert "Traceback" not in ended.stderr
