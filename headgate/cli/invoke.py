"""`headgate invoke`: one call, over HTTP or lambda.invoke."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headgate.client import Answer, Headgate, LambdaHeadgate
from headgate.client.answers import Outcome


def invoke(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")] = "",
    base_url: Annotated[str | None, typer.Option(help="OpenAI base URL; else HEADGATE_BASE_URL.")] = None,
    over_lambda: Annotated[bool, typer.Option("--lambda", help="Through lambda.invoke (AWS's variables).")] = False,
    key: Annotated[str | None, typer.Option(help="API key; else HEADGATE_API_KEY.")] = None,
    model: Annotated[str | None, typer.Option(help="Model; default: the only one that is offered.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    completion: Annotated[bool, typer.Option("--completion", help="Plain completion instead of chat.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed, the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be given several times.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key is the same invocation.")] = None,
    stream: Annotated[bool, typer.Option(help="Print text as it comes (HTTP).")] = True,
    later: Annotated[bool, typer.Option("--later", help="Start it and print its id (--lambda).")] = False,
    result: Annotated[str | None, typer.Option(help="Print what became of this id (--lambda).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print OpenAI's body.")] = False,
) -> None:
    """Ask once and print the answer."""
    if (later or result) and not over_lambda:
        raise typer.BadParameter("--later and --result go through lambda.invoke: add --lambda")
    if not prompt and not result:
        raise typer.BadParameter("nothing to ask: give a prompt")
    if completion and system:
        raise typer.BadParameter("--system goes with a chat, not with --completion")
    text = sys.stdin.read() if prompt == "-" else prompt
    asked: Any = text if completion else [*([{"role": "system", "content": system}] if system else []), _user(text)]
    fields: dict[str, Any] = {
        "idempotency_key": idempotency_key,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "stop": stop or None,
    }
    if over_lambda:
        _over_lambda(asked, key, model, completion, later, result, json, fields)
        return
    client = Headgate(base_url, key, model=model)
    if stream and not json:
        for piece in client.stream(asked, chat=not completion, **fields):
            _print(piece, end="")
        _print("")
    else:
        call = client.complete if completion else client.chat
        _answer(call(asked, **fields), json)


def _over_lambda(
    asked: Any,
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
    client = LambdaHeadgate(key, model=model or "")
    if result:
        _outcome(client.result(result), json)
    elif later:
        started = client.later(asked, chat=not completion, **fields)
        _print(json_module.dumps({"id": started}) if json else started)
    else:
        call = client.complete if completion else client.chat
        _answer(call(asked, **fields), json)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _answer(answer: Answer, json: bool) -> None:
    _print(json_module.dumps(answer.raw) if json else answer.text)


def _outcome(outcome: Outcome, json: bool) -> None:
    """Print it; exit code 1 where the invocation came to nothing."""
    if json:
        answer, error = outcome.answer, outcome.error
        told = {"id": outcome.id, "status": outcome.status, "answer": asdict(answer) if answer else None}
        _print(json_module.dumps({**told, "error": str(error) if error else None}))
    elif outcome.answer:
        _print(outcome.answer.text)
    else:
        _print(f"{outcome.status}{f': {outcome.error}' if outcome.error else ''}")
    if outcome.status in ("failed", "expired"):
        raise typer.Exit(1)


def _print(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()
