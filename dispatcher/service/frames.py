"""Frames between a gate process and its clients. A frame is a JSON array of messages that were ready at the same time.

Commands, outcomes and news are the named tuples of model/commands.py. The other messages are defined here. A message is
a compact JSON array: a letter for its kind, then the fields in order (`RecordCodec`).

The other process is authenticated (authentication.py), but may run another version. So the type of each field is
checked here: a wrong field closes one connection and does not stop the leader. Further fields at the end, of a later
version, are left out, and fields that an earlier version lacks get their defaults (model/formats.py).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from dispatcher.model import commands, facts
from dispatcher.model.call import made, row_defaults, row_hints
from dispatcher.model.commands import Command, Offer, Outcome, Over
from dispatcher.model.errors import BadFrame
from dispatcher.model.exact_json import read_json, write_json
from dispatcher.model.formats import NEWEST


class _Field(NamedTuple):
    accepted: frozenset[type]
    """The exact types of the JSON values that are accepted. So a bool is not a number here, as it is in Python."""
    is_list: bool


def _field(hint: Any) -> _Field:
    if get_origin(hint) is tuple:
        return _Field(frozenset({list}), True)
    named = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    return _Field(frozenset({*named, int} if float in named else named), False)


_TEXTS = tuple[str, ...]


def _convert_value(value: Any, hint: Any) -> Any:
    """Return a value of JSON as the type that `hint` names. Lists become tuples. Raises TypeError for other values."""
    if hint == _TEXTS and all(type(item) is str for item in value):
        return tuple(value)
    if get_origin(hint) is tuple and type(value) is list:
        return tuple(_convert_value(item, get_args(hint)[0]) for item in value)
    if hasattr(hint, "_fields") and type(value) is list and len(value) == len(hint._fields):
        return hint._make(map(_convert_value, value, get_type_hints(hint).values()))
    if get_origin(hint) is tuple or type(value) not in _field(hint).accepted:
        raise TypeError(f"{value!r} is no {hint!r}")
    return value


class _Kind:
    """A class of named tuples, with the types of its fields."""

    def __init__(self, kind: type[Any]) -> None:
        hints = list(row_hints(kind).values())
        self._made = kind
        self._of_row: Callable[[list[Any]], Any] | None = getattr(kind, "of_row", None)
        self._fields = tuple(map(_field, hints))
        self._lists = tuple((index, hints[index]) for index, field in enumerate(self._fields) if field.is_list)
        defaults = row_defaults(kind).values()
        self._defaults = tuple(list(each) if type(each) is tuple else each for each in defaults)  # as JSON has them
        self._fitting: set[tuple[type, ...]] = set()
        """The combinations of types that passed the check. There are only a few: a float field may also get an int."""

    def make(self, values: list[Any]) -> Any:
        """Return the named tuple. Raises BadFrame."""
        if len(values) != len(self._fields):
            values = self._complete(values)
        found = tuple(map(type, values))
        if found not in self._fitting:
            self._check(found)
            self._fitting.add(found)
        for index, hint in self._lists:
            try:
                values[index] = _convert_value(values[index], hint)
            except TypeError:
                raise BadFrame(f"Field {index} of a {self._made.__name__} has the wrong type.") from None
        return made(self._made, values) if self._of_row is None else self._of_row(values)

    def _complete(self, values: list[Any]) -> list[Any]:
        """Return the values of this version's fields."""
        missing = len(self._fields) - len(values)
        if missing > len(self._defaults):
            raise BadFrame(f"A {self._made.__name__} has {len(self._fields)} fields, not {len(values)}.")
        return [*values, *self._defaults[-missing:]] if missing > 0 else values[:missing]

    def _check(self, found: Sequence[type]) -> None:
        for index, (each, field) in enumerate(zip(found, self._fields, strict=True)):
            if each not in field.accepted:
                raise BadFrame(f"Field {index} of a {self._made.__name__} has the wrong type.")


class RecordCodec:
    """Packs and unpacks the named tuples of one family. `kinds`: the letter of each class. `fields_before`: the number
    of fields in format OLDEST, of the classes that have more since."""

    def __init__(
        self, kinds: Mapping[str, type[Any]], fields_before: Mapping[type[Any], int] = MappingProxyType({})
    ) -> None:
        self._before = dict(fields_before)
        self._letters = {kind: letter for letter, kind in kinds.items()}
        self._with_rows = frozenset(kind for kind in kinds.values() if hasattr(kind, "row"))
        self._kinds = {letter: _Kind(kind) for letter, kind in kinds.items()}

    def pack(self, record: Any, reads: int = NEWEST) -> list[Any]:
        """Return the record for a process that reads this format."""
        kind = type(record)
        row = record.row() if kind in self._with_rows else record
        if reads < NEWEST and kind in self._before:
            row = row[: self._before[kind]]
        return [self._letters[kind], *row]

    def unpack(self, packed: Any) -> Any:
        """Return the named tuple. Raises BadFrame."""
        if type(packed) is not list or not packed or type(packed[0]) is not str or packed[0] not in self._kinds:
            raise BadFrame("A record of an unknown kind.")
        return self._kinds[packed[0]].make(packed[1:])


FRAME_MAX = 1_000_000
"""The most bytes of a frame. A larger frame closes the connection."""
FRAME_FULL = 250_000
"""A frame takes a further message only up to this many bytes. A frame of one message may be larger."""


class Hello(NamedTuple):
    """The first message of a client. `role`: "client", "executor" (it executes launched calls) or "gate"."""

    reads: int
    """The highest format that the client reads (model/formats.py); 1 for one that reads OLDEST."""
    process: str
    role: str
    address: str
    """The address at which a gate process listens; empty for other processes."""


class ReadsFormat(NamedTuple):
    """The leader's answer to a Hello that names a format: the highest format that the leader reads."""

    format: int


class Do(NamedTuple):
    """A command. `created_at`: the time at which it was first sent, in Unix seconds by the client's clock."""

    number: int
    created_at: float
    command: Command


class Ask(NamedTuple):
    """A question about the shard's state. `topic` is "fleet" or "usage" (service/gate/questions.py)."""

    number: int
    topic: str
    arguments: tuple[str, ...]


class Heartbeat(NamedTuple):
    """Shows that the client lives. Its receipt shows that the leader lives."""


class Receipt(NamedTuple):
    """The number of frames that were read on this connection. `asks`: whether the leader has an order for a worker of
    this client, which should report now. A reader that does not know it learns of the order when it reports anyway."""

    frames: int
    asks: bool = False


class Result(NamedTuple):
    number: int
    outcome: Outcome


class Reply(NamedTuple):
    """An answer to Ask, as JSON text."""

    number: int
    answer: str


class News(NamedTuple):
    """An offer or an end of a call that the client holds."""

    news: Offer | Over


class Launch(NamedTuple):
    """Asks an executor to execute this attempt of a durable call."""

    id: str
    attempt: int


class NotLeader(NamedTuple):
    """This process does not lead. `address`: the leader that it knows; empty if it knows none."""

    address: str
    epoch: int


class Heir(NamedTuple):
    """The client is the leader's heir number `rank`, from 0. -1: it is no heir."""

    rank: int


Message = Hello | ReadsFormat | Do | Ask | Heartbeat | Receipt | Result | Reply | News | Launch | NotLeader | Heir

COMMANDS = RecordCodec(
    {
        "a": commands.Accept,
        "c": commands.Cancel,
        "r": commands.Return,
        "e": commands.End,
        "w": commands.Report,
        "l": commands.Leave,
        "x": commands.Retire,
        "p": commands.Present,
        "g": commands.Gone,
        "s": commands.Silent,
        "q": commands.Status,
        "t": commands.Tick,
        "u": commands.Saved,
        "n": commands.Plan,
        "f": commands.UseFormat,
    },
    {commands.End: 10, commands.Accept: 20, commands.Report: 13},
)
_OUTCOMES = RecordCodec(
    {
        "w": commands.Waiting,
        "o": commands.Offer,
        "x": commands.Over,
        "u": commands.Unknown,
        "r": commands.Refused,
        "a": commands.Attempts,
        "d": commands.Done,
    }
)
WORKERS = RecordCodec({"w": facts.WorkerSet}, {facts.WorkerSet: 12})
_PLAIN = RecordCodec(
    {
        "h": Hello,
        "p": Heartbeat,
        "r": Receipt,
        "q": Ask,
        "t": Reply,
        "x": Launch,
        "l": NotLeader,
        "i": Heir,
        "f": ReadsFormat,
    },
    {Receipt: 1},
)


_NUMBERS = frozenset({int, float})


def encode_message(message: Message, reads: int = NEWEST) -> bytes:
    """Return the message as JSON, for a process that reads this format. Raises ValueError for a number that is not
    finite."""
    return write_json(_pack_message(message, reads))


def encode_frames(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Put encoded messages into as few frames as their size allows, in order."""
    batch: list[bytes] = []
    size = 0
    for message in messages:
        if batch and size + len(message) > FRAME_FULL:
            yield _frame(batch)
            batch, size = [], 0
        batch.append(message)
        size += len(message) + 1
    if batch:
        yield _frame(batch)


def decode_frame(frame: bytes) -> list[Message]:
    """Return the messages of a frame. Raises BadFrame."""
    if len(frame) > FRAME_MAX:
        raise BadFrame("A frame is too large.")
    try:
        packed = read_json(frame)
    except (ValueError, RecursionError):
        raise BadFrame("A frame is not JSON.") from None
    if not isinstance(packed, list):
        raise BadFrame("A frame is not an array.")
    return [_unpack_message(item) for item in packed]


def encode_news(news: Offer | Over) -> bytes:
    """Return the news as bytes for a mailbox."""
    return write_json(_OUTCOMES.pack(news))


def decode_news(data: bytes) -> Offer | Over:
    """Return the news of a mailbox. Raises BadFrame."""
    try:
        return _news(read_json(data))
    except (ValueError, RecursionError):
        raise BadFrame("News of a mailbox are not JSON.") from None


def _frame(batch: list[bytes]) -> bytes:
    return b"[" + b",".join(batch) + b"]"


def _pack_message(message: Any, reads: int) -> list[Any]:
    kind = type(message)
    if kind is Do:
        return ["c", message.number, message.created_at, COMMANDS.pack(message.command, reads)]
    if kind is Result:
        return ["o", message.number, _OUTCOMES.pack(message.outcome)]
    if kind is News:
        return ["n", _OUTCOMES.pack(message.news)]
    return _PLAIN.pack(message, reads)


def _unpack_message(packed: Any) -> Message:
    if type(packed) is list and packed:
        letter, length = packed[0], len(packed)
        if letter == "c" and length == 4 and type(packed[1]) is int and type(packed[2]) in _NUMBERS:
            return made(Do, (packed[1], packed[2], COMMANDS.unpack(packed[3])))
        if letter == "o" and length == 3 and type(packed[1]) is int:
            return made(Result, (packed[1], _OUTCOMES.unpack(packed[2])))
        if letter == "n" and length == 2:
            return made(News, (_news(packed[1]),))
    message: Message = _PLAIN.unpack(packed)
    return message


def _news(packed: Any) -> Offer | Over:
    news = _OUTCOMES.unpack(packed)
    if not isinstance(news, Offer | Over):
        raise BadFrame("News are an offer or an end.")
    return news
