"""`headgate invoke` calls the service once, over HTTP or lambda.invoke."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import openai
import typer

from dispatcher.model.errors import ConfigurationError
from headgate.client import Answer, Headgate, LambdaHeadgate, Outcome


def invoke(
    prompt: Annotated[str, typer.Argument(help="The user's text; - reads it from standard input.")] = "",
    base_url: Annotated[str | None, typer.Option(help="OpenAI base URL; default: HEADGATE_BASE_URL.")] = None,
    over_lambda: Annotated[bool, typer.Option("--lambda", help="Use lambda.invoke, with AWS's variables.")] = False,
    key: Annotated[str | None, typer.Option(help="API key; default: HEADGATE_API_KEY.")] = None,
    model: Annotated[str | None, typer.Option(help="Model; default: the only one that the service has.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    completion: Annotated[bool, typer.Option("--completion", help="Plain completion instead of chat.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always takes the likeliest token.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeat for several.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="A call with a key used before is the same invocation: one charge, one answer.")
    ] = None,
    stream: Annotated[bool, typer.Option(help="Print the text as it arrives (HTTP only).")] = True,
    later: Annotated[bool, typer.Option("--later", help="Start it and print its id (with --lambda).")] = False,
    result: Annotated[str | None, typer.Option(help="Print the outcome of this id (with --lambda).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print OpenAI's body.")] = False,
) -> None:
    """Call the service once and print the answer."""
    if (later or result) and not over_lambda:
        raise typer.BadParameter("--later and --result work over lambda.invoke only: add --lambda")
    if not prompt and not result:
        raise typer.BadParameter("give a prompt, or - to read it from standard input")
    if completion and system:
        raise typer.BadParameter("--system works with a chat only: leave out --completion")
    text = sys.stdin.read() if prompt == "-" else prompt
    content: Any = text if completion else [*([{"role": "system", "content": system}] if system else []), _user(text)]
    fields: dict[str, Any] = {
        "idempotency_key": idempotency_key,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "stop": stop or None,
    }
    with _one_line_errors():
        if over_lambda:
            _over_lambda(content, key, model, completion, later, result, json, fields)
        else:
            _over_http(content, base_url, key, model, completion, stream, json, fields)


def _over_http(
    content: Any,
    base_url: str | None,
    key: str | None,
    model: str | None,
    completion: bool,
    stream: bool,
    json: bool,
    fields: dict[str, Any],
) -> None:
    client = Headgate(base_url, key, model=model)
    if stream and not json:
        for piece in client.stream(content, chat=not completion, **fields):
            _print(piece, end="")
        _print("")
    else:
        _answer((client.complete if completion else client.chat)(content, **fields), json)


def _over_lambda(
    content: Any,
    key: str | None,
    model: str | None,
    completion: bool,
    later: bool,
    result: str | None,
    json: bool,
    fields: dict[str, Any],
) -> None:
    if model is None and not result:
        raise typer.BadParameter("lambda.invoke lists no models: name one with --model")
    client = LambdaHeadgate(key, model=model)
    if result:
        _outcome(client.result(result), json)
    elif later:
        started = client.later(content, chat=not completion, **fields)
        _print(json_module.dumps({"id": started}) if json else started)
    else:
        _answer((client.complete if completion else client.chat)(content, **fields), json)


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


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _answer(answer: Answer, json: bool) -> None:
    _print(json_module.dumps(answer.raw) if json else answer.text)


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
