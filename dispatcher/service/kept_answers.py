"""Stores the answer of a durable call before its end is written to the log (rule 15), so that both agree.

An earlier attempt may have stored an answer although its end was never written. Then that answer is final, and the
later attempt ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dispatcher.model.commands import Command, End, Outcome, Over
from dispatcher.model.invocation import Answer
from dispatcher.model.unanswered import answer_of_outcome
from dispatcher.ports import InvocationStore


async def keep_answers(
    store: InvocationStore, commands: Sequence[Command], outcomes: Sequence[Outcome], now: float
) -> list[Command]:
    """Store the answers of the ends that the shard is about to write.

    Return the commands with the answers that the store holds now. Raises StoreUnavailable.
    """
    return list(await asyncio.gather(*(_kept(store, *pair, now) for pair in zip(commands, outcomes, strict=True))))


async def kept_ends(store: InvocationStore, ends: Sequence[Over], commands: Sequence[Command]) -> list[End]:
    """Return the ends that the store holds of running calls that are about to end, or to wait again, without an answer.

    The process that kept such an answer died before it wrote the end, and the worker before it reported the end again.
    Raises StoreUnavailable.
    """
    reported = {(command.id, command.attempt) for command in commands if isinstance(command, End)}
    lost = [over for over in ends if over.attempt and (over.id, over.attempt) not in reported]
    items = await asyncio.gather(*(store.get(over.id) for over in lost))
    return [
        End(over.id, over.attempt, kept.outcome, kept.input_tokens, kept.output_tokens, item.tenant, kept.body)
        for over, item in zip(lost, items, strict=True)
        if item is not None and (kept := item.answer) is not None and kept.attempt
    ]


async def keep_outcomes(store: InvocationStore, ends: Sequence[Over], commands: Sequence[Command], now: float) -> None:
    """Store an answer for each durable call that ended without one: while it waited, or after its last attempt.

    Call it when the end is in the log, because only the log decides how the call ended. Raises StoreUnavailable.
    """
    answered = {command.id for command in commands if isinstance(command, End) and command.answer}
    missing = [over for over in ends if over.id not in answered]
    await asyncio.gather(*(store.answer(over.id, answer_of_outcome(over, now)) for over in missing))


def ends_with_answer(command: Command, outcome: Outcome) -> bool:
    """Return whether this command ends a durable call. It does not if the shard refuses it as an earlier attempt."""
    if not isinstance(command, End) or not command.answer:
        return False
    return isinstance(outcome, Over) and outcome.attempt == command.attempt


async def _kept(store: InvocationStore, command: Command, outcome: Outcome, now: float) -> Command:
    if not isinstance(command, End) or not ends_with_answer(command, outcome):
        return command
    stands = await store.answer(
        command.id,
        Answer(command.outcome, command.attempt, command.input_tokens, command.output_tokens, command.answer, now),
    )
    if stands is None or stands.attempt == command.attempt:
        return command
    return command._replace(
        outcome=stands.outcome,
        input_tokens=stands.input_tokens,
        output_tokens=stands.output_tokens,
        answer=stands.body,
    )
