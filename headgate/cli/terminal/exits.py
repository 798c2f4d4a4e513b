"""Exit codes of the commands, and the line on standard error that names the mistake."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import typer

from dispatcher.model.errors import AnsweredError, ConfigurationError
from headgate.cli.terminal.output import OutputLost, drop_output

BAD_INPUT = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
"""The reader of standard output, such as `head`, has closed it."""
EXTRAS = {
    "openai": "client",
    "moto": "local",
    "awslambdaric": "local",
    "psutil": "serve",
    "torch": "transformers",
    "transformers": "transformers",
    "matplotlib": "plots",
}
"""The extra that installs each optional package."""
USAGE_ERROR = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Base class of Typer's errors about arguments; it has no public name."""


def exit_code(run: Callable[[], object]) -> int:
    """Run a command and return its exit code.

    Bad input prints one line on standard error and gives 2, and so does output that cannot be written. For a defect of
    headgate the traceback is shown.
    """
    for name in ("dispatcher", "headgate.store"):  # the error line below is the only message
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        code = _exit_code(run)
        sys.stdout.flush()
    except OutputLost as lost:
        drop_output()
        return PIPE_CLOSED if lost.is_closed else _bad_input(str(lost))
    return code


def _exit_code(run: Callable[[], object]) -> int:
    try:
        code = run()
    except typer.Exit as ended:
        return ended.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (ConfigurationError, AnsweredError) as error:
        return _bad_input(str(error))
    except ImportError as error:
        if "socksio" in str(error):  # raised by httpx, whatever the client is for
            return _bad_input("a proxy of the environment (ALL_PROXY) is a SOCKS proxy: pip install 'httpx[socks]'")
        if error.name not in EXTRAS:
            raise
        return _bad_input(f"this needs the package {error.name}: pip install 'headgate[{EXTRAS[error.name]}]'")
    except OSError as error:
        if error.filename is None:  # not about a file that the user named
            raise
        return _bad_input(f"{error.filename}: {error.strerror}")
    except Exception as error:
        if not isinstance(error, USAGE_ERROR):
            raise
        return _bad_input(error.format_message())  # type: ignore[attr-defined]
    return code if isinstance(code, int) else 0


def _bad_input(message: str) -> int:
    if message:  # empty if the help was printed
        sys.stderr.write(f"headgate: {' '.join(message.split())}\n")
    return BAD_INPUT
