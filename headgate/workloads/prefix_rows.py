"""Traces as a JSON object on each line, with hashes of the prompts in the format of Mooncake's public ones (FAST 2025).

    {"timestamp": 27482, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]}

`timestamp` is in milliseconds. `hash_ids` has one number for each block of 512 tokens of the prompt, the last block may
be incomplete; requests with the same leading numbers have the same prefix. Without it, prompts have nothing in common.
The lengths may also be `input_tokens` and `output_tokens`. Two fields are headgate's own: `tenant`, and
`prefix_group`, a group of tenants that share cached prefixes. Other fields are ignored.

A line with a `chat_id` is of Alibaba's public traces of Qwen: its `timestamp` is in seconds, and a block has 16 tokens.
Of 32 such blocks one of 512 is made: it gets a new number for each different prompt up to its end.

`--columns` names other fields: a time is then in seconds unless the name ends in its unit or has it behind a colon, as
in a CSV (columns.py).

A line without tenant and hashes is of the file's name. One with hashes, as in the public traces, is of one of TENANTS
tenants `tenant-0`, `tenant-1` …: the second of its hashes modulo TENANTS, or the first if there is no other. Requests
of one conversation have the same second block, so one tenant has them all. The first block alone is often a system
prompt, which all requests share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.workloads.arrivals import PREFIX_BLOCK_TOKENS, TOKENS_MAX, Arrival, TraceError, problem_of_name
from headgate.workloads.columns import MOMENT_MAX_S, NS_PER_S, given_name, unit_ns

TENANTS = 4
_HASH_MAX = 2**64
_OF_QWEN = "chat_id"
_QWEN_BLOCK_TOKENS = 16
_NAMES = {
    "arrival": ("timestamp",),
    "input_tokens": ("input_length", "input_tokens"),
    "output_tokens": ("output_length", "output_tokens"),
    "tenant": ("tenant",),
}


class PrefixRow:
    """The current line. Every method raises TraceError. `given`: names of fields by what they hold, as --columns has
    them."""

    def __init__(self, path: Path, given: Mapping[str, str]) -> None:
        self._path = path
        self._given = given
        self._fields: dict[str, Any] = {}
        self._tenants: dict[str, str] = {}
        self._blocks: dict[tuple[int, tuple[int, ...]], int] = {}
        """Numbers of blocks that were made of smaller ones, by the block before and the smaller ones."""
        self.line = 0

    def take(self, text: str) -> None:
        """Make the next line the current one."""
        self.line += 1
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise TraceError(f"{self._path}, line {self.line}: not a JSON object")
        self._fields = fields

    def missing(self, form: str, name: str) -> TraceError:
        hint = f"name another with --columns {form}=NAME"
        return TraceError(f"{self._path}, line {self.line}: has no field {name!r}, which every line needs: {hint}")

    def wrong(self, name: str, what: str) -> TraceError:
        shown = ascii(self._fields.get(name))[:40]
        return TraceError(f"{self._path}, line {self.line}, field {name!r}: {shown} {what}")

    def arrival(self, tenant: str | None, first_ns: int = 0) -> Arrival:
        """Return the arrival, counted from `first_ns`; `tenant` replaces the line's tenant."""
        input_tokens, output_tokens = self._tokens("input_tokens"), self._tokens("output_tokens")
        hash_ids = self._hash_ids(input_tokens)
        named = tenant or self._text(self._name("tenant")) or self._tenant_of(hash_ids)
        arrival_s = self._arrival_s()
        if first_ns:
            arrival_s = (round(arrival_s * NS_PER_S) - first_ns) / NS_PER_S
        return Arrival(
            arrival_s,
            self._tenants.setdefault(named, named),
            input_tokens,
            output_tokens,
            hash_ids=hash_ids,
            prefix_group=self._text("prefix_group"),
        )

    def _name(self, form: str) -> str:
        """Return the name of the field that holds it in this line."""
        if form in self._given:
            return given_name(self._given[form])
        first, *others = _NAMES[form]
        return next((name for name in others if name in self._fields and first not in self._fields), first)

    def _arrival_s(self) -> float:
        name = self._name("arrival")
        value, per_s = self._fields.get(name), NS_PER_S // unit_ns(self._given.get("arrival", name))
        if "arrival" not in self._given:
            per_s = 1 if _OF_QWEN in self._fields else 1000
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            if name not in self._fields:
                raise self.missing("arrival", name)
            unit = {1: "seconds", 1000: "milliseconds"}.get(per_s, "units of time")
            raise self.wrong(name, f"is not a time of zero or more {unit}")
        if value > MOMENT_MAX_S * per_s:
            raise self.wrong(
                name, f"is no time in this unit: give the unit with --columns arrival={name}:s, :ms, :us or :ns"
            )
        return value / per_s

    def _tokens(self, form: str) -> int:
        name = self._name(form)
        value = self._fields.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # data frames write 120.0
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TOKENS_MAX:
            if name not in self._fields:
                raise self.missing(form, name)
            raise self.wrong(name, f"is not a whole number between 0 and {TOKENS_MAX}")
        return value

    def _hash_ids(self, input_tokens: int) -> tuple[int, ...]:
        value = self._fields.get("hash_ids")
        if value is None:
            return ()
        block_tokens = _QWEN_BLOCK_TOKENS if _OF_QWEN in self._fields else PREFIX_BLOCK_TOKENS
        blocks = -(-input_tokens // block_tokens)
        if not isinstance(value, list) or not all(type(each) is int and 0 <= each < _HASH_MAX for each in value):
            raise self.wrong("hash_ids", "is not a list of whole numbers from 0 to 2^64 - 1")
        if len(value) != blocks:
            raise self.wrong(
                "hash_ids",
                f"has {len(value)} numbers for {input_tokens} input tokens, and needs {blocks}, one for each "
                f"{block_tokens} tokens: leave the field out if the trace has blocks of another size",
            )
        return tuple(value) if block_tokens == PREFIX_BLOCK_TOKENS else self._join_blocks(value)

    def _join_blocks(self, hashes: Sequence[int]) -> tuple[int, ...]:
        """Return one number for each PREFIX_BLOCK_TOKENS of the prompt, of the hashes of smaller blocks."""
        each = PREFIX_BLOCK_TOKENS // _QWEN_BLOCK_TOKENS
        joined: list[int] = []
        before = -1
        for start in range(0, len(hashes), each):
            block = before, tuple(hashes[start : start + each])
            before = self._blocks.setdefault(block, len(self._blocks))
            joined.append(before)
        return tuple(joined)

    def _text(self, name: str) -> str | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, "is no text")
        if (problem := problem_of_name(value)) is not None:
            raise self.wrong(name, problem)
        return value.strip()

    def _tenant_of(self, hash_ids: tuple[int, ...]) -> str:
        if self._fields.get("hash_ids") is None:
            return self._path.stem
        return f"tenant-{hash_ids[min(1, len(hash_ids) - 1)] % TENANTS if hash_ids else 0}"


class PrefixRows:
    """One pass over a trace: iterating yields its arrivals in the order of the file. Raises TraceError."""

    def __init__(
        self, path: Path, lines: Iterator[str], tenant: str | None, columns: Mapping[str, str], first_ns: int = 0
    ) -> None:
        self.row = PrefixRow(path, columns)
        self.first_ns = first_ns
        self._lines = lines
        self._tenant = tenant

    def __iter__(self) -> Iterator[Arrival]:
        for text in self._lines:
            if text.strip():
                self.row.take(text)
                yield self.row.arrival(self._tenant, self.first_ns)
            else:
                self.row.line += 1
