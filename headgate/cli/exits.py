"""How a command ends: its exit code, and the one line that says what was wrong."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

import typer

from dispatcher.model.errors import AnsweredError, ConfigurationError
from headgate.client.answers import HeadgateClientError

BAD_INPUT = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
"""Whoever read our output has seen enough."""
USAGE_ERROR = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Base of what Typer raises for arguments that it cannot make sense of; it has no public name."""


def exit_code(run: Callable[[], object]) -> int:
    """Run a command. Bad input is one line on standard error and 2; what is our own mistake keeps its traceback."""
    logging.getLogger("dispatcher").addHandler(logging.NullHandler())  # what is to be said is said here, once
    try:
        code = run()
        sys.stdout.flush()
    except typer.Exit as ended:
        return ended.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (ConfigurationError, AnsweredError, HeadgateClientError) as error:
        return _said(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere, quietly
        return PIPE_CLOSED
    except OSError as error:
        if error.filename is None:  # not about a file that somebody named
            raise
        return _said(f"{error.filename}: {error.strerror}")
    except Exception as error:
        if not isinstance(error, USAGE_ERROR):
            raise
        return _said(error.format_message())  # type: ignore[attr-defined]
    return code if isinstance(code, int) else 0


def _said(message: str) -> int:
    if message:  # empty where the help was the answer
        sys.stderr.write(f"headgate: {' '.join(message.split())}\n")
    return BAD_INPUT
