"""The identity and the terms of one request, which travel as a whole. Pure.

A front makes the terms once. Its command, the fact of the log, the waiting call and the worker's order all hold the
same object, and each adds its own fields beside it.

The bytes of commands and facts are older than these objects: there, the fields stand in one row. `row` and `of_row` of
a class translate.
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

made = tuple.__new__
"""`made(Offer, (...))` makes `Offer(...)` in half the time, because it calls no Python function. It does not check the
number of fields, so only the named tuples that the shard makes for every call are made with it."""


class CallTerms(NamedTuple):
    """What the gate knows of a request before it decides. Costs are in service units, times in Unix seconds.

    The client sets `app` and `interaction`; they affect only the order of its tenant's own requests, and throttling.
    `slo_class`, `due_at` and `deferred` say when the first token is due (policies/planning/slo.py). Without a class
    they are empty, and the call is due in the order of its arrival.
    """

    tenant: str
    """The identity of its tenant."""
    model: str
    cost: float
    """The estimate of its service."""
    deadline_at: float
    durable: bool
    """True if the answer is kept for the caller."""
    app: str
    interaction: str
    slo_class: str = ""
    due_at: float = 0.0
    deferred: bool = False
    """True if the class is a deferred one: the call uses capacity that others leave until its slack is used up."""
    input_tokens: int = 0
    """The estimate of the prompt's length that is a part of `cost`."""
    prefix: str = ""
    """The keys of the beginnings of its prompt (prefixes.py); empty if the pool prefers no worker by them. It stays the
    last term: a row leaves it out where it is empty."""


HEAD = CallTerms._fields.index("slo_class")
"""The terms before this one stand together in a row, and the others at the row's end: they are younger."""


def younger_terms(terms: CallTerms) -> tuple[Any, ...]:
    """Return the terms at a row's end."""
    return terms[HEAD:] if terms[-1] else terms[HEAD:-1]


class TenantConfig(NamedTuple):
    """A tenant's share and limits, of version `version` of its configuration."""

    version: int
    weight: float
    rate_per_s: float
    burst: float
    tier: str
    waiting_max: int


def row_hints(kind: type[Any]) -> dict[str, Any]:
    """Return the type of each field in a row of this class of named tuples, in the row's order."""
    hints = get_type_hints(kind)
    if not hasattr(kind, "row"):
        return {name: hints[name] for name in kind._fields}
    names = kind(*(hints[name]._fields if hasattr(hints[name], "_fields") else name for name in kind._fields)).row()
    for part in (CallTerms, TenantConfig):
        hints |= get_type_hints(part)
    return {name: hints[name] for name in names}


def row_defaults(kind: type[Any]) -> dict[str, Any]:
    """Return the values of the fields that an older row lacks, in the row's order."""
    return dict((CallTerms if "terms" in kind._fields else kind)._field_defaults)
