"""`headgate` commands in forks of one warm process: a process of its own spends 1.5 CPU seconds on imports alone.

A fork has the variables, the output and the exit code of a new process. It differs from one only in what is imported:
all that an earlier command imported.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[2]


def run_warm(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `headgate` with these arguments and variables in the repository's folder. Return its exit code and output."""
    return _warm_process().run(arguments, environment)


class _WarmProcess:
    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        clean = {"PATH": "/usr/bin:/bin", "HOME": "/tmp"}  # noqa: S108 - no file is made there
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=clean
        )
        self._turn = Lock()
        atexit.register(self._process.communicate)  # it ends with its input, and is waited for

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None
        assert answers is not None
        with self._turn:
            given.write(json.dumps([arguments, dict(environment)]) + "\n")
            given.flush()
            code, output, errors = json.loads(answers.readline())
        return subprocess.CompletedProcess(arguments, code, output, errors)


@cache
def _warm_process() -> _WarmProcess:
    return _WarmProcess()


def _serve() -> None:
    """Run the commands of standard input, a line of JSON each, and answer each with a line."""
    for line in sys.stdin:
        arguments, environment = json.loads(line)
        with TemporaryFile() as output, TemporaryFile() as errors, TemporaryFile() as imported:
            child = os.fork()
            if not child:
                _run(arguments, environment, output, errors, imported)
            _, status = os.waitpid(child, 0)
            answer = [os.waitstatus_to_exitcode(status), _text(output), _text(errors)]
            names = _text(imported).split()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        for name in names:
            with contextlib.suppress(Exception):  # some names in sys.modules are no modules that can be imported
                import_module(name)


def _run(
    arguments: list[str], environment: dict[str, str], output: IO[bytes], errors: IO[bytes], imported: IO[bytes]
) -> NoReturn:
    """Be the command: in the forked process, which ends here."""
    code: Any = 1
    before = set(sys.modules)
    try:
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["headgate", *arguments]
        from headgate.cli import main

        main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(imported.fileno(), "\n".join(name for name in sys.modules if name not in before).encode())
        os._exit(code)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    _serve()
