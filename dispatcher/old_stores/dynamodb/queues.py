"""Statements that change a queue with its invocations: charges, refunds, joining and leaving."""

from __future__ import annotations

from dispatcher.model.old_invocation import Invocation
from dispatcher.old_stores.dynamodb.attributes import Item
from dispatcher.old_stores.dynamodb.expressions import Statement
from dispatcher.old_stores.dynamodb.layout import WAITING_POOL, queue_key
from dispatcher.old_stores.numbers import TAT_PLACE, VFT_PLACE, ZERO, service, stepped
from dispatcher.policies.clocks import STAY, Debit, Step


def charged(invocation: Invocation, debit: Debit) -> Statement:
    """Take a dispatch's debit from the clocks."""
    # Another charge of the tenant moved a clock over the edge at which its step was computed (in profile or not, ahead
    # of V or not): the decision no longer stands. Inside the branch, concurrent charges simply add up.
    statement = _moved(invocation.queue, debit.tat, debit.vft)
    statement.add("reserved", service(debit.charge.cost))
    return statement


def refunded(ran: Invocation, tat: Step, vft: Step) -> Statement:
    """Replace the estimate by what `tat` and `vft` say: valid in any branch, so without a condition."""
    statement = _moved(ran.queue, tat, vft)
    statement.add("reserved", -service(ran.charge.cost if ran.charge is not None else 0.0))
    return statement


def lifted(invocation: Invocation, lift: Step | None) -> Statement:
    return _moved(invocation.queue, STAY, lift or STAY)


def untouched(invocation: Invocation) -> Statement:
    return _moved(invocation.queue, STAY, STAY)


def require_empty_queue(statement: Statement) -> None:
    statement.require(statement.absent("waiting"), statement.compares("waiting", "=", 0))


def join(statement: Statement, pool: str) -> None:
    """Count one more waiting request. The pool's name puts the queue into the indexes, which need both clocks set."""
    statement.add("waiting", 1)
    statement.set(WAITING_POOL, pool)


def quit_queue(statement: Statement, *, last: bool) -> None:
    """Count one waiting request less. The last one takes the queue out of the indexes."""
    # Another joined or left since the count was read: a queue is in the index exactly while a request waits.
    statement.require(statement.compares("waiting", "=" if last else ">", 1))
    statement.add("waiting", -1)
    if last:
        statement.remove(WAITING_POOL)


def only_the_count_differed(old: Item | None, tat: Step, vft: Step) -> bool:
    """Return whether only the number of waiting requests was not as expected."""
    if old is None or old.get("waiting", ZERO) < 1:
        return False
    tat_moved = stepped(tat, old.get("tat", ZERO), TAT_PLACE)
    return tat_moved is not None and stepped(vft, old.get("vft", ZERO), VFT_PLACE) is not None


def _moved(queue: str, tat: Step, vft: Step) -> Statement:
    statement = Statement(queue_key(queue))
    statement.set("line", queue)
    statement.move("tat", tat, TAT_PLACE)
    statement.move("vft", vft, VFT_PLACE)
    return statement
