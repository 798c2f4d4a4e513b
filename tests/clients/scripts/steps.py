"""Run the steps of a client's script and print the result of each, in the lines that tests/clients/runs.py reads.

The scripts run in the clients' own environments, so this module needs only the standard library.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

BASE_URL = os.environ["OPENAI_BASE_URL"]
API_KEY = os.environ["OPENAI_API_KEY"]
MODEL = os.environ["CLIENT_MODEL"]
ERROR_CHARACTERS_MAX = 300


def run(*steps: Callable[[], Any]) -> None:
    """Run all steps, also after a failed step. Exit with 1 if a step failed.

    Coroutines run in one event loop, because some clients keep connections between calls.
    """
    _print("STEPS", [_name(step) for step in steps])
    failed = False
    with asyncio.Runner() as runner:
        for step in steps:
            error = _error_of(step, runner)
            failed = failed or bool(error)
            _print("STEP", {"step": _name(step), "error": error})
    sys.exit(failed)


def _error_of(step: Callable[[], Any], runner: asyncio.Runner) -> str:
    """Return the last line of the step's error, or an empty text if the step succeeds."""
    try:
        outcome = step()
        if inspect.iscoroutine(outcome):
            runner.run(outcome)
    except Exception as error:
        traceback.print_exc()
        lines = f"{type(error).__name__}: {error}".strip().splitlines()
        last = lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"
        return last[:ERROR_CHARACTERS_MAX]
    return ""


def _name(step: Callable[[], Any]) -> str:
    return step.__name__.replace("_", " ")


def _print(kind: str, content: Any) -> None:
    sys.stdout.write(f"{kind} {json.dumps(content)}\n")
    sys.stdout.flush()
