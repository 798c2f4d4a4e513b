"""Stores the answer of a durable call before its end is written to the log (rule 15), so that both agree.

An earlier attempt may have stored an answer although the log never got its end. Then that answer is final, and the call
ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from dispatcher.model.answers import answer_of_outcome
from dispatcher.model.commands import Command, End, Outcome, Over
from dispatcher.model.kept import StoredAnswer, priced_details_of
from dispatcher.ports import InvocationStore

AT_ONCE = 256
"""The most concurrent requests to the store for one entry. The store refuses requests beyond its queue
(stores/dynamodb/requests.py). Without this bound, an entry that needs more of them could never be written."""

T = TypeVar("T")


async def keep_answers(
    store: InvocationStore, commands: Sequence[Command], outcomes: Sequence[Outcome], now: float
) -> list[Command]:
    """Store the answers of the End commands that the shard is about to write.

    Return the commands, each End with the answer that the store holds now. Raises StoreUnavailable.
    """
    return await _in_parts([partial(_keep_answer, store, *pair, now) for pair in zip(commands, outcomes, strict=True)])


async def kept_ends(
    store: InvocationStore, ends: Sequence[Over], lost: Sequence[Over], commands: Sequence[Command], now: float
) -> list[End]:
    """Return an End for each of these calls whose answer an earlier attempt has stored.

    `ends`: calls that ran and are about to end without a reported answer. `lost`: attempts that are about to be
    returned as lost. A stored answer exists in two cases: the process that stored it died before it wrote the end, and
    the worker died before it repeated its report; or the attempt was returned meanwhile.

    If the store holds no answer for a call of `ends`, store the answer of its outcome. Otherwise a process that has not
    read the log yet could store another one later. Raises StoreUnavailable.
    """
    reported = {(command.id, command.attempt) for command in commands if isinstance(command, End) and command.answer}
    ended, again = ([over for over in overs if (over.id, over.attempt) not in reported] for overs in (ends, lost))
    gone = [*ended, *again]
    own = [*(answer_of_outcome(over, now) for over in ended), *(None for _ in again)]
    standing = await _in_parts(
        [partial(_standing, store, over.id, answer) for over, answer in zip(gone, own, strict=True)]
    )
    return [
        _end_with(kept, over)
        for over, kept, other in zip(gone, standing, own, strict=True)
        if kept is not None and kept.attempt and kept != other
    ]


async def keep_outcomes(store: InvocationStore, ends: Sequence[Over], now: float) -> None:
    """Store answers for durable calls that ended before they ran. Raises StoreUnavailable.

    Call this after the log contains the ends, because only the log decides how such a call ends.
    """
    await _in_parts([partial(store.answer, over.id, answer_of_outcome(over, now)) for over in ends])


def ends_with_answer(command: Command, outcome: Outcome) -> bool:
    """Return whether this command ends a durable call with its answer. The End of an older attempt does not."""
    if not isinstance(command, End) or not command.answer:
        return False
    return isinstance(outcome, Over) and outcome.attempt == command.attempt


async def _in_parts(requests: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Make the requests, at most AT_ONCE at a time, and return their results. Raises the first error."""
    results: list[T] = []
    for start in range(0, len(requests), AT_ONCE):
        results += await asyncio.gather(*(request() for request in requests[start : start + AT_ONCE]))
    return results


def _end_with(kept: StoredAnswer, over: Over) -> End:
    tokens = (kept.input_tokens, kept.output_tokens)
    attempt = over.attempt or kept.attempt
    return End(over.id, attempt, kept.outcome, *tokens, answer=kept.body, kept=True, **priced_details_of(kept))


async def _standing(store: InvocationStore, call_id: str, answer: StoredAnswer | None) -> StoredAnswer | None:
    """Store an answer, if there is one and the store has none, and return the answer that the store has now."""
    if answer is not None:
        return await store.answer(call_id, answer)
    item = await store.get(call_id)
    return None if item is None else item.answer


async def _keep_answer(store: InvocationStore, command: Command, outcome: Outcome, now: float) -> Command:
    if not isinstance(command, End) or not ends_with_answer(command, outcome):
        return command
    stands = await store.answer(
        command.id,
        StoredAnswer(
            command.outcome, command.attempt, command.input_tokens, command.output_tokens, command.answer, now
        ),
    )
    if stands is None or stands.body == command.answer:
        return command
    return command._replace(
        outcome=stands.outcome,
        input_tokens=stands.input_tokens,
        output_tokens=stands.output_tokens,
        answer=stands.body,
        **priced_details_of(stands),
    )
