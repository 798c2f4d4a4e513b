"""No child outlives its stack, however the stack ends."""

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpu_worker.service.options import parse_options
from headgate.machine import processes
from headgate.machine.fleet import LocalFleet
from headgate.machine.options import FleetOptions, ServedModel, SwappingWorker
from headgate.machine.places import usable
from headgate.machine.processes import Child, ChildDied, Children, last_sentence
from tests.support.hang_guard import HANG_S

pytestmark = [pytest.mark.stack]

READY = "import json, sys; print('hello'); print(json.dumps({'url': 'here'}), flush=True);"
FOREVER = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY} {FOREVER}"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
async def children(tmp_path: Path) -> AsyncIterator[Children]:
    made = Children("mark-" + tmp_path.name, tmp_path / "logs", grace_s=0.2)
    yield made
    await made.stop()
    assert made.survivors() == []


async def test_announces_itself_and_logs(children: Children) -> None:
    child = await children.spawn("one", python(READY + "print('to err', file=sys.stderr)"), environment={})
    assert await child.announcement(HANG_S) == {"url": "here"}
    await child.wait()
    await children.stop()
    log = child.log_path.read_text()
    assert "hello" in log
    assert "to err" in log


SENTENCE = "gpu_worker: the model has no tokenizer"
SAYS = f"import sys; print({SENTENCE!r}, file=sys.stderr, flush=True);"


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("", ""),
        ("\n \n", ""),
        ("one\ntwo\n", "two"),
        ('gpu_worker: no model\n{"level": "INFO", "message": "Shutting down"}\n', "gpu_worker: no model"),
        ('{"level": "WARNING", "message": "still waiting for the server"}\n', "still waiting for the server"),
        ('{"level": "ERROR"}\n', ""),
        ("Traceback (most recent call last):\n  File x\n    a = 1\nValueError: no\n    ^^^\n", "ValueError: no"),
        ("a\x1b[31m red\tline\x00\r\n", "a [31m red line"),
        ("[1, 2]\n", "[1, 2]"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_the_last_sentence_of_a_log(output: str, sentence: str) -> None:
    assert last_sentence(output) == sentence


async def test_an_end_before_the_announcement_says_the_one_sentence_of_the_child(children: Children) -> None:
    chatter = """print('{"level": "INFO", "message": "Started"}', file=sys.stderr);"""
    child = await children.spawn("one", python(f"{SAYS} {chatter} raise SystemExit(2)"), environment={})
    with pytest.raises(ChildDied) as caught:
        await child.announcement(HANG_S)
    assert str(caught.value) == f"one ended with status 2 before it was ready: {SENTENCE}"


async def test_a_child_that_ends_slowly_is_late_with_its_own_sentence(children: Children) -> None:
    child = await children.spawn("one", python(f"{SAYS} {FOREVER}"), environment={})
    async with asyncio.timeout(HANG_S):
        while not child.reason():
            await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError, match=r"one was not ready after 0\.001 s .*: " + SENTENCE):
        await child.announcement(0.001)


async def test_an_end_before_the_announcement_carries_the_log(children: Children) -> None:
    child = await children.spawn("one", python("raise SystemExit('no model there')"), environment={})
    with pytest.raises(ChildDied, match=r"(?s)one ended with status 1.*no model there"):
        await child.announcement(HANG_S)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit('the disk is broken')", "status 1 (the disk is broken); its log"),
        ("import os; os.kill(os.getpid(), 9)", "status -9; its log"),
        ("raise SystemExit(2)", "status 2; its log"),
    ],
)
async def test_an_end_with_an_error_is_reported_with_its_reason(children: Children, code: str, expected: str) -> None:
    child = await children.spawn("one", python(code), environment={})
    with pytest.raises(ChildDied):  # all of its output is in the log then
        await child.announcement(HANG_S)
    assert expected in child.ending()


async def test_a_log_does_not_grow_for_ever(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front writes 700 bytes a request, and serves for weeks."""
    monkeypatch.setattr(processes, "LOG_BYTES_MAX", 1000)
    monkeypatch.setattr(processes, "LOG_CHECKED_EVERY_S", 0.001)
    lines = (
        "import sys; [print('x' * 99, file=out, flush=True) for _ in range(100) for out in (sys.stdout, sys.stderr)]"
    )
    child = await children.spawn("one", python(f"{READY} {lines}; {FOREVER}"), environment={})
    before = child.log_path.with_suffix(".log.1")
    async with asyncio.timeout(HANG_S):
        while not before.exists() or child.log_path.stat().st_size > 1000:
            await asyncio.sleep(0.001)
    assert "x" in before.read_text()


class FullDisk(io.RawIOBase):
    def write(self, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_its_output_is_read_although_the_disk_is_full(tmp_path: Path) -> None:
    """A child whose pipe is not read blocks in its next write, and answers no more."""
    child = Child("one", None, tmp_path / "one.log", 0)  # type: ignore[arg-type]
    output = asyncio.StreamReader()
    output.feed_data(b"many lines\n")
    copying = asyncio.create_task(child._copy_output(output, FullDisk()))
    await asyncio.sleep(0)
    output.feed_data(b'{"url": "here"}\n')
    output.feed_eof()
    await copying
    assert await child.announcement(HANG_S) == {"url": "here"}


async def test_a_process_that_is_not_ready_in_time_is_ended(children: Children, tmp_path: Path) -> None:
    """A restart is tried again. Two workers would then load the model, and two fronts want one port."""
    options = FleetOptions(home=tmp_path, start_timeout_s=0.001)
    fleet = LocalFleet(options, children, {"PYTHONPATH": os.pathsep.join(sys.path)}, "default")
    for starting in (fleet.start_gate(0), fleet.start_front(0, usable("127.0.0.1", 0))):
        with pytest.raises(TimeoutError):
            await starting
    assert children.survivors() == []


async def test_the_worker_gets_the_engines_arguments_last(children: Children, tmp_path: Path) -> None:
    options = FleetOptions(home=tmp_path, engine="vllm", engine_arguments=("--quantization", "fp8"))
    command = LocalFleet(options, children, {}, "default")._worker_command(0)
    assert parse_options(command[2:]).arguments == ["--quantization", "fp8"]


@pytest.mark.parametrize(("batch", "expected"), [(None, 12), (3, 3)])
async def test_a_worker_of_a_fleet_computes_all_its_slots_at_once(
    children: Children, tmp_path: Path, batch: int | None, expected: int
) -> None:
    """Slots are requests that run at once (headgate/simulator/fleet/spec.py). The worker's default computes four."""
    swapping = (SwappingWorker((ServedModel("a", 1.0), ServedModel("b", 1.0)), slots=12),)
    options = FleetOptions(home=tmp_path, engine="modelled", swapping=swapping, batch=batch)
    parsed = parse_options(LocalFleet(options, children, {}, "default")._worker_command(0)[2:])
    assert (parsed.slots, parsed.batch) == (12, expected)


async def test_gets_exactly_the_environment_given(children: Children) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    child = await children.spawn("one", python(code), environment={"ONE": "1"})
    seen = await child.announcement(HANG_S)
    assert {name for name in seen if not name.startswith("LC_")} == {"ONE", "HEADGATE_LOCAL_STACK"}


async def test_an_unasked_death_is_reported_once_and_an_asked_one_never(tmp_path: Path) -> None:
    died: asyncio.Queue[str] = asyncio.Queue()
    children = Children("mark-" + tmp_path.name, tmp_path, on_death=lambda c: died.put_nowait(c.name), grace_s=0.2)
    await children.spawn("asked", python(READY + FOREVER), environment={})
    await children.spawn("of no account", python("exit(3)"), environment={}, vital=False)
    await children.spawn("unasked", python("exit(3)"), environment={})
    assert await asyncio.wait_for(died.get(), HANG_S) == "unasked"
    await children.stop()
    assert died.empty()


async def test_one_that_ignores_sigterm_is_killed_with_its_own_children(children: Children) -> None:
    family = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); {STUBBORN}"
    child = await children.spawn("stubborn", python(family), environment={})
    await child.announcement(HANG_S)
    assert await child.stop(grace_s=0.1) == -signal.SIGKILL
    await children.stop()
    assert children.survivors() == []


async def test_a_grandchild_in_a_session_of_its_own_goes_too(children: Children) -> None:
    code = f"""
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=subprocess.PIPE)
grandchild.stdout.readline(); print('{{"pid": %d}}' % grandchild.pid)
"""
    child = await children.spawn("parent", python(code), environment={})
    grandchild = (await child.announcement(HANG_S))["pid"]
    await asyncio.wait_for(child.wait(), HANG_S)
    assert grandchild in children.survivors()
    await children.stop()
    assert children.survivors() == []


async def test_a_parent_s_end_is_seen_while_a_grandchild_holds_its_pipe(children: Children) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {FOREVER!r}], start_new_session=True)"
    child = await children.spawn("parent", python(code), environment={})
    assert await asyncio.wait_for(child.wait(), HANG_S) == 0


STACK = textwrap.dedent(
    """
    import asyncio, json, signal, sys
    from pathlib import Path
    from headgate.machine.processes import Children

    # A shell in the background starts its processes with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    async def main():
        children = Children(sys.argv[1], Path(sys.argv[2]), grace_s=0.2)
        for name in "ab":
            child = await children.spawn(name, [sys.executable, "-c", sys.argv[3]], environment={})
            await child.announcement(float(sys.argv[4]))
        print(json.dumps(children.survivors()), flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_when_the_stack_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM, too, ends this stack at once: it has no handler for it."""
    stack = subprocess.Popen(
        [sys.executable, "-c", STACK, f"mark-{tmp_path.name}", str(tmp_path), STUBBORN, str(HANG_S)],
        stdout=subprocess.PIPE,
    )
    assert stack.stdout is not None
    pids = json.loads(stack.stdout.readline())
    assert len(pids) == 2
    living = [psutil.Process(pid) for pid in pids]
    os.kill(stack.pid, number)
    stack.wait()
    _, survivors = psutil.wait_procs(living, timeout=HANG_S)
    assert survivors == []


async def test_a_child_that_ends_before_its_start_is_noted_keeps_its_sentence(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it has written everything by then."""
    spawn = asyncio.create_subprocess_exec

    async def slow_spawn(*command: str, **settings: Any) -> asyncio.subprocess.Process:
        process = await spawn(*command, **settings)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow_spawn)
    child = await children.spawn("one", python("raise SystemExit('no model there')"), environment={})
    with pytest.raises(ChildDied, match=r"(?s)one ended with status 1.*no model there"):
        await child.announcement(HANG_S)
