"""`headgate invoke` calls the service once, over HTTP or lambda.invoke."""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import openai
import typer

from dispatcher.model.errors import ConfigurationError
from headgate.cli.terminal.one_object import takes
from headgate.client import Headgate, LambdaHeadgate, Outcome


@dataclass(frozen=True)
class InvokeOptions:
    prompt: Annotated[str, typer.Argument(help="The user's text; - reads it from standard input.")] = ""
    base_url: Annotated[str | None, typer.Option(help="OpenAI base URL; default: HEADGATE_BASE_URL.")] = None
    over_lambda: Annotated[bool, typer.Option("--lambda", help="Use lambda.invoke, with AWS's variables.")] = False
    key: Annotated[str | None, typer.Option(help="API key; default: HEADGATE_API_KEY.")] = None
    model: Annotated[str | None, typer.Option(help="Model; default: the only one that the service has.")] = None
    system: Annotated[str | None, typer.Option(help="System message.")] = None
    completion: Annotated[bool, typer.Option("--completion", help="Plain completion instead of chat.")] = False
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None
    temperature: Annotated[float | None, typer.Option(help="0 always takes the likeliest token.")] = None
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeat for several.")] = None
    idempotency_key: Annotated[
        str | None, typer.Option(help="A call with a key used before is the same invocation: one charge, one answer.")
    ] = None
    stream: Annotated[bool, typer.Option(help="Print the text as it arrives (HTTP only).")] = True
    later: Annotated[bool, typer.Option("--later", help="Start it and print its id (with --lambda).")] = False
    result: Annotated[str | None, typer.Option(help="Print the outcome of this id (with --lambda).")] = None
    json: Annotated[bool, typer.Option("--json", help="Print OpenAI's body.")] = False

    def check(self) -> None:
        """Raise typer.BadParameter for options that do not go together, and for a missing address or key."""
        if (self.later or self.result) and not self.over_lambda:
            raise typer.BadParameter("--later and --result work over lambda.invoke only: add --lambda")
        if not self.prompt and not self.result:
            raise typer.BadParameter("give a prompt, or - to read it from standard input")
        if self.completion and self.system:
            raise typer.BadParameter("--system works with a chat only: leave out --completion")
        if self.over_lambda and self.model is None and not self.result:
            raise typer.BadParameter("lambda.invoke lists no models: name one with --model")
        self._check_address()

    def _check_address(self) -> None:
        if not self.over_lambda and not (self.base_url or os.environ.get("HEADGATE_BASE_URL")):
            raise typer.BadParameter("give the service's address with --base-url, or set HEADGATE_BASE_URL")
        if not (self.key or os.environ.get("HEADGATE_API_KEY")):
            raise typer.BadParameter("give an API key with --key, or set HEADGATE_API_KEY")

    def content(self) -> Any:
        """Return the text of a completion, or the messages of a chat."""
        text = sys.stdin.read() if self.prompt == "-" else self.prompt
        if self.completion:
            return text
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": text}]

    def fields(self) -> dict[str, Any]:
        return {
            "idempotency_key": self.idempotency_key,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stop": self.stop or None,
        }


@takes(InvokeOptions)
def invoke(options: InvokeOptions) -> None:
    """Call the service once and print the answer."""
    options.check()
    with _one_line_errors():
        if not options.over_lambda:
            client = Headgate(options.base_url, options.key, model=options.model)
            _stream(client, options) if options.stream and not options.json else _answer(client, options)
            return
        over_lambda = LambdaHeadgate(options.key, model=options.model)
        if options.result:
            _outcome(over_lambda.result(options.result), options.json)
        elif options.later:
            started = over_lambda.later(options.content(), chat=not options.completion, **options.fields())
            _print(json_module.dumps({"id": started}) if options.json else started)
        else:
            _answer(over_lambda, options)


def _stream(client: Headgate, options: InvokeOptions) -> None:
    for piece in client.stream(options.content(), chat=not options.completion, **options.fields()):
        _print(piece, end="")
    _print("")


def _answer(client: Headgate, options: InvokeOptions) -> None:
    call = client.complete if options.completion else client.chat
    answer = call(options.content(), **options.fields())
    _print(json_module.dumps(answer.raw) if options.json else answer.text)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raise the client's errors as ConfigurationError: the service's own message, without openai's wrapping."""
    try:
        yield
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        raise ConfigurationError(str(body.get("message") or f"the service answered {error.status_code}")) from None
    except openai.APIConnectionError as error:
        raise ConfigurationError(f"the service cannot be reached: {error.__cause__ or error}") from None
    except openai.OpenAIError as error:
        raise ConfigurationError(str(error)) from None


def _outcome(outcome: Outcome, json: bool) -> None:
    """Print the outcome. The exit code is 1 if the invocation failed or expired."""
    if json:
        answer, error = outcome.answer, outcome.error
        shown = {"id": outcome.id, "status": outcome.status, "answer": asdict(answer) if answer else None}
        _print(json_module.dumps({**shown, "error": str(error) if error else None}))
    elif outcome.answer:
        _print(outcome.answer.text)
    else:
        _print(f"{outcome.status}{f': {outcome.error}' if outcome.error else ''}")
    if outcome.status in ("failed", "expired"):
        raise typer.Exit(1)


def _print(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()
