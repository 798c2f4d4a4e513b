"""Traces with hashes of prompts, in the format of Mooncake's public traces (FAST 2025): a JSON object on each line.

    {"timestamp": 27482, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]}

`timestamp` is in milliseconds. `hash_ids` has one number for each block of 512 tokens of the prompt, the last block may
be incomplete; requests with the same leading numbers have the same prefix. Two fields are headgate's own: `tenant`, and
`prefix_group`, a group of tenants that share cached prefixes. Other fields are ignored.

A line without a tenant, as in the public traces, is of one of TENANTS tenants `tenant-0`, `tenant-1` …: the second of
its hashes modulo TENANTS, or the first if there is no other. Requests of one conversation have the same second block,
so one tenant has them all. The first block alone is often a system prompt, which all requests share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate.workloads.arrivals import PREFIX_BLOCK_TOKENS, TENANT_CHARS_MAX, TOKENS_MAX, Arrival, TraceError

TENANTS = 4
_HASH_MAX = 2**63


class PrefixRow:
    """The current line. Every method raises TraceError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fields: dict[str, Any] = {}
        self._tenants: dict[str, str] = {}
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

    def wrong(self, name: str, what: str) -> TraceError:
        shown = ascii(self._fields.get(name))[:40]
        return TraceError(f"{self._path}, line {self.line}, field {name!r}: {shown} {what}")

    def arrival(self, tenant: str | None) -> Arrival:
        """Return the arrival; `tenant` replaces the line's tenant."""
        input_tokens, output_tokens = self._tokens("input_length"), self._tokens("output_length")
        hash_ids = self._hash_ids(input_tokens)
        named = tenant or self._text("tenant") or self._tenant_of(hash_ids)
        return Arrival(
            self._arrival_s(),
            self._tenants.setdefault(named, named),
            input_tokens,
            output_tokens,
            hash_ids=hash_ids,
            prefix_group=self._text("prefix_group"),
        )

    def _arrival_s(self) -> float:
        value = self._fields.get("timestamp")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise self.wrong("timestamp", "is not a time of zero or more milliseconds")
        try:
            return value / 1000
        except OverflowError:
            raise self.wrong("timestamp", "is too large") from None

    def _tokens(self, name: str) -> int:
        value = self._fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TOKENS_MAX:
            raise self.wrong(name, f"is not a whole number between 0 and {TOKENS_MAX}")
        return value

    def _hash_ids(self, input_tokens: int) -> tuple[int, ...]:
        value, blocks = self._fields.get("hash_ids"), -(-input_tokens // PREFIX_BLOCK_TOKENS)
        if not isinstance(value, list) or not all(type(each) is int and 0 <= each < _HASH_MAX for each in value):
            raise self.wrong("hash_ids", "is not a list of whole numbers from 0 on")
        if len(value) != blocks:
            raise self.wrong(
                "hash_ids",
                f"has {len(value)} numbers for {input_tokens} input tokens, which are {blocks} blocks of "
                f"{PREFIX_BLOCK_TOKENS}",
            )
        return tuple(value)

    def _text(self, name: str) -> str | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or len(value) > TENANT_CHARS_MAX or not value.isprintable():
            raise self.wrong(name, f"is not a name of 1 to {TENANT_CHARS_MAX} visible characters")
        return value.strip()

    def _tenant_of(self, hash_ids: tuple[int, ...]) -> str:
        return f"tenant-{hash_ids[min(1, len(hash_ids) - 1)] % TENANTS if hash_ids else 0}"


class PrefixRows:
    """One pass over a trace: iterating yields its arrivals in the order of the file. Raises TraceError."""

    first_ns = 0
    """No line has a date."""

    def __init__(self, path: Path, lines: Iterator[str], tenant: str | None) -> None:
        self.row = PrefixRow(path)
        self._lines = lines
        self._tenant = tenant

    def __iter__(self) -> Iterator[Arrival]:
        for text in self._lines:
            if text.strip():
                self.row.take(text)
                yield self.row.arrival(self._tenant)
            else:
                self.row.line += 1
