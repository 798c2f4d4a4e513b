"""The tool calls of one choice, as OpenAI's deltas: each has an index, its own id, its name once, and then pieces of
its arguments as text. Pure.

Servers leave out the index or the id, give two calls the same one, repeat the name, send it in pieces, or send the
arguments as an object. A piece belongs to an earlier call if that has its id, or its index, or if it has neither and no
name. It begins a new call if it has a name and the arguments before it are whole.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from dispatcher.fields.chat_objects import TOOL_CALL
from dispatcher.fields.limits import NAME_CHARS_MAX
from gpu_worker.engines.interface import EngineError
from gpu_worker.engines.openai.normal.values import REPLACEMENT, Halves, clean, clean_fields, without_surrogates
from gpu_worker.engines.openai.sse import Nonsense

_CALLS_MAX = 1_000
_KNOWN = frozenset(TOOL_CALL.fields) | {"type"}
_OWN = frozenset({"id", "function", "index", "type", "name", "arguments"})
_ARGUMENTS = ("arguments", "input", "parameters")
"""The names of a call's arguments, OpenAI's first."""


@dataclass(slots=True)
class _Call:
    """`given_index`, `given_id`: those that the server sent. `sent`: whether its first delta was."""

    index: int
    given_index: int | None
    given_id: str
    name: str = ""
    is_sent: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        if len(self.pieces) > 1:
            self.pieces[:] = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    @property
    def is_whole(self) -> bool:
        """Whether the arguments so far are a JSON object."""
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True, slots=True)
class _Piece:
    """What the server sent of one call."""

    index: int | None
    id: str
    name: str
    arguments: str
    extra: dict[str, Any]


class ToolCalls:
    """`prefix`: of the ids of calls without one. `offered`: the names of the request's tools."""

    def __init__(self, prefix: str, offered: Collection[str]) -> None:
        self._prefix = prefix
        self._offered = offered
        self._calls: list[_Call] = []
        self._ids: set[str] = set()
        self._halves = Halves()

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def are_whole(self) -> bool:
        return all(call.is_whole for call in self._calls)

    def take(self, items: Any, *, whole: bool = False) -> list[dict[str, Any]]:
        """Return the deltas of these items. `whole`: each item is a whole call. Raises Nonsense."""
        items = [items] if isinstance(items, dict) else items
        if not isinstance(items, list):
            raise Nonsense("the tool calls are no list")
        return [delta for item in items if item is not None for delta in self._take(_read(item), whole)]

    def end(self, *, is_cut: bool) -> list[dict[str, Any]]:
        """Return the deltas that are left when the choice ends. `is_cut`: at its limit, so that arguments may be
        missing. Raises EngineError for a call without a name."""
        deltas = []
        for index in self._halves.end():
            self._calls[index].pieces.append(REPLACEMENT)
            if self._calls[index].is_sent:
                deltas.append(_continue(self._calls[index], REPLACEMENT, {}))
        for call in self._calls:
            if not call.name:
                raise EngineError("generation_failed", "the engine failed on this request: its tool call has no name")
            missing = "" if is_cut or call.arguments.strip() else "{}"
            if missing:
                call.pieces.append(missing)
            if not call.is_sent:
                deltas.append(self._first(call))
            elif missing:
                deltas.append(_continue(call, missing, {}))
        return deltas

    def _take(self, piece: _Piece, whole: bool) -> Iterator[dict[str, Any]]:
        call = None if whole else self._earlier(piece)
        if call is None:
            call = self._new(piece)
        elif _is_repeated(call, piece):
            return
        if piece.name and piece.name != call.name:
            call.name += piece.name
        arguments = self._halves.join(call.index, piece.arguments)
        if arguments:
            call.pieces.append(arguments)
        if call.is_sent:
            if arguments or piece.extra:
                yield _continue(call, arguments, piece.extra)
            return
        call.extra |= piece.extra
        if call.name and (whole or call.arguments or self._is_certain(call.name)):
            yield self._first(call)

    def _earlier(self, piece: _Piece) -> _Call | None:
        """Return the call that this piece continues; None if it begins one."""
        found = next(
            (call for call in reversed(self._calls) if piece.index is None or call.given_index in (None, piece.index)),
            None,
        )
        if piece.id:
            same = (call for call in reversed(self._calls) if call.given_id == piece.id)
            known = next(
                (call for call in same if piece.index is None or call.given_index in (None, piece.index)), None
            )
            has_other_id = known is None and found is not None and bool(found.given_id)
            if found is not None and has_other_id and (piece.name or (piece.arguments and found.is_whole)):
                return None
            found = known or found
        return None if found is None or self._begins(found, piece) else found

    def _begins(self, call: _Call, piece: _Piece) -> bool:
        """Return whether a piece with a name begins another call, though it has the place of this one."""
        if not (piece.name and call.name):
            return False
        if _is_repeated(call, piece):
            return piece.index is None and not piece.id
        if call.is_whole:
            return bool(piece.arguments) or piece.name != call.name
        other = piece.name != call.name and (bool(call.arguments) or piece.name in self._offered)
        return other and piece.index is None and not piece.id

    def _new(self, piece: _Piece) -> _Call:
        if len(self._calls) >= _CALLS_MAX:
            raise Nonsense(f"more than {_CALLS_MAX} tool calls")
        call = _Call(len(self._calls), piece.index, piece.id)
        self._calls.append(call)
        return call

    def _is_certain(self, name: str) -> bool:
        """Return whether the name is whole: without arguments after it, it could be the beginning of another one."""
        if not self._offered:
            return True
        return name in self._offered and not any(each != name and each.startswith(name) for each in self._offered)

    def _first(self, call: _Call) -> dict[str, Any]:
        call.is_sent = True
        function = {"name": call.name, "arguments": call.arguments}
        return {"index": call.index, "id": self._unique(call), "type": "function", **call.extra, "function": function}

    def _unique(self, call: _Call) -> str:
        """Return an id that no other call of the choice has and that can be sent back."""
        made = f"call_{self._prefix}_{call.index}"
        wanted = call.given_id if 0 < len(call.given_id) <= NAME_CHARS_MAX else made
        if wanted in self._ids:
            wanted = f"{wanted[: NAME_CHARS_MAX - 8]}_{call.index}"
        while wanted in self._ids:
            wanted = f"{made}_{len(self._ids)}"
        self._ids.add(wanted)
        return wanted


def _continue(call: _Call, arguments: str, extra: dict[str, Any]) -> dict[str, Any]:
    return {"index": call.index, **extra, "function": {"arguments": arguments}}


def _is_repeated(call: _Call, piece: _Piece) -> bool:
    """Return whether the piece is the whole call once more, as some servers send it at the end."""
    if piece.name != call.name or not piece.arguments.lstrip().startswith("{"):
        return False
    return call.is_whole and piece.arguments.strip() == call.arguments.strip()


def _read(item: Any) -> _Piece:
    """Return an item as a piece. Raises Nonsense."""
    if not isinstance(item, dict):
        raise Nonsense("a tool call is no object")
    kind = item.get("type")
    inner = next((item[name] for name in ("function", kind) if name and isinstance(item.get(name), dict)), None)
    source = item if inner is None else inner
    name, given = source.get("name"), item.get("id")
    own = {*_OWN, kind} if inner is not None else _OWN.union(_ARGUMENTS)
    extra = {key: value for key, value in item.items() if key not in own and value is not None}
    return _Piece(
        _index(item.get("index")),
        without_surrogates(str(given)) if isinstance(given, str | int) and not isinstance(given, bool) else "",
        without_surrogates(name) if isinstance(name, str) else "",
        _arguments(source),
        _move_unknown_fields(clean_fields(extra)) if extra else extra,
    )


def _index(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        return int(value[:9])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _arguments(source: dict[str, Any]) -> str:
    given = next((source[name] for name in _ARGUMENTS if source.get(name) is not None), "")
    return given if isinstance(given, str) else json.dumps(clean(given), ensure_ascii=False)


def _move_unknown_fields(extra: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with those that a request may not have in `provider_specific_fields`."""
    unknown = {name: value for name, value in extra.items() if name not in _KNOWN}
    if not unknown:
        return extra
    theirs = extra.get("provider_specific_fields")
    fields = {**(theirs if isinstance(theirs, dict) else {}), **unknown}
    kept = {name: value for name, value in extra.items() if name in _KNOWN}
    return {**kept, "provider_specific_fields": fields}
