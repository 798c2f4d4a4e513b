"""Frames: what is encoded is decoded, and what is no frame is refused."""

import json
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model import commands, facts
from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.errors import BadFrame
from dispatcher.model.fleet import GroupPlan, LoadableModel, WorkerPlan
from dispatcher.model.formats import NEWEST, OLDEST
from dispatcher.policies.slot_shares import ShardNeed
from dispatcher.service import frames
from dispatcher.service.frames import decode_frame, encode_frames, encode_message
from gpu_worker.service.executions.execution import ANSWER_BYTES_MAX

TEXT = st.text(max_size=20)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXT,
    "int": st.integers(-(2**53), 2**53),
    "float": NUMBER,
    "float | None": st.none() | NUMBER,
    "bool": st.booleans(),
    "tuple[float, ...]": st.lists(NUMBER, max_size=3).map(tuple),
    "tuple[str, ...]": st.lists(TEXT, max_size=4).map(tuple),
    "tuple[LoadableModel, ...]": st.lists(
        st.builds(
            LoadableModel, TEXT, NUMBER, st.integers(0, 2**53), NUMBER, NUMBER, st.lists(TEXT, max_size=2).map(tuple)
        ),
        max_size=3,
    ).map(tuple),
    "tuple[ShardNeed, ...]": st.lists(
        st.builds(ShardNeed, *[st.integers(0, 2**53)] * 5, *[NUMBER] * 4), max_size=1
    ).map(tuple),
    "tuple[WorkerPlan, ...]": st.lists(
        st.builds(WorkerPlan, TEXT, TEXT, st.lists(st.integers(0, 99), max_size=3).map(tuple)), max_size=3
    ).map(tuple),
    "tuple[GroupPlan, ...]": st.lists(
        st.builds(GroupPlan, TEXT, TEXT, TEXT, st.integers(0, 9), st.integers(0, 2**53), NUMBER, NUMBER, st.booleans()),
        max_size=3,
    ).map(tuple),
}


def records(*kinds: type[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        [st.builds(kind, *[BY_TYPE[hint.__forward_arg__] for hint in kind.__annotations__.values()]) for kind in kinds]
    )


BY_TYPE |= {"CallTerms": records(CallTerms), "TenantConfig": records(TenantConfig)}
COMMANDS = records(*get_args(commands.Command))
OUTCOMES = records(*get_args(commands.Outcome))
NEWS = records(commands.Offer, commands.Over)
NUMBERS = st.integers(0, 2**40)
MESSAGES = st.one_of(
    records(frames.Hello, frames.Ask, frames.Heartbeat, frames.Receipt, frames.Reply, frames.Launch),
    records(frames.NotLeader, frames.Heir),
    st.builds(frames.Do, NUMBERS, NUMBER, COMMANDS),
    st.builds(frames.Result, NUMBERS, OUTCOMES),
    st.builds(frames.News, NEWS),
)


@given(st.lists(MESSAGES, min_size=1, max_size=6))
def test_frames_carry_what_was_sent(messages: list[frames.Message]) -> None:
    received = [decode_frame(frame) for frame in encode_frames(map(encode_message, messages))]
    assert [message for frame in received for message in frame] == messages


@given(MESSAGES)
def test_a_version_with_another_encoder_reads_and_writes_the_same(message: frames.Message) -> None:
    """Two encoders may write a number such as 1e-05 with other characters."""
    packed = frames._pack_message(message, NEWEST)
    text = json.dumps(packed, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    assert decode_frame(f"[{text}]".encode()) == [message]
    assert json.loads(encode_message(message)) == json.loads(text)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_not_sent(number: float) -> None:
    end = commands.End("p-1", 1, "done", 10, 20, "null")
    assert b"null" in encode_message(frames.Do(1, 0.0, end))
    with pytest.raises(ValueError, match="is no JSON"):
        encode_message(frames.Do(1, number, end))


def test_a_frame_ends_when_it_is_full() -> None:
    messages = [frames.Reply(number, "x" * 100_000) for number in range(7)]
    sent = list(encode_frames(map(encode_message, messages)))
    assert [len(decode_frame(frame)) for frame in sent] == [2, 2, 2, 1]


@pytest.mark.parametrize("character", ["a", '"', "\\", "\n", "ж", "語", "😀"])
def test_the_longest_answer_fits_into_a_frame(character: str) -> None:
    """A frame that is too large closes the connection, and its worker would send it again and again."""
    answer = json.dumps(character, ensure_ascii=False)[1:-1]
    answer *= ANSWER_BYTES_MAX // len(answer.encode())
    sent = frames.Do(1, 0.0, commands.End("p-1", 1, "done", 10, 20, "acme", answer))
    assert [decode_frame(frame) for frame in encode_frames([encode_message(sent)])] == [[sent]]


@pytest.mark.parametrize(
    "packed",
    [
        *(
            b"",
            b"{}",
            b"[1]",
            b"[[]]",
            b'[["z"]]',
            b'[["r"]]',
            b'[["r","1"]]',
            b'[["r",true]]',
            b'[["r",NaN]]',
            b'[["c",1,1e999,["c","id"]]]',
            b"\xff",
        ),
        *(b'[["h",1,"p","client"]]', b'[["c",1,0.0,["a"]]]', b'[["n",["d"]]]', b'[["c",1,0.0,["c","id",[1]]]]'),
        b"[" * 100_000,
    ],
)
def test_what_is_no_frame_is_refused(packed: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_frame(packed)


def test_a_list_field_holds_texts_only() -> None:
    packed = frames.COMMANDS.pack(commands.Report("w", "u", "m", 1, 1, 1.0, 1.0, False, 0.0, 0, ("a#1",)))
    packed[1 + commands.Report._fields.index("live")] = [1]
    with pytest.raises(BadFrame):
        decode_frame(json.dumps([["c", 1, 0.0, packed]]).encode())


def test_a_process_of_the_older_format_gets_no_field_that_it_does_not_have() -> None:
    """It has the 13 fields of a report and the 12 of a worker."""
    models = (LoadableModel("m", 0.0, 4096, 4.0, 0.0),)
    report = commands.Report("w", "u", "m", 1, 1, 1.0, 1.0, False, 0.0, 0, (), (), models, (50.0,))
    worker = facts.WorkerSet("w", "u", "m", 1, 1, 1.0, 1.0, "serving", models=models, expected_per_s=(50.0,))
    assert (len(frames.COMMANDS.pack(report)), len(frames.COMMANDS.pack(report, OLDEST))) == (15, 14)
    assert (len(frames.WORKERS.pack(worker)), len(frames.WORKERS.pack(worker, OLDEST))) == (14, 13)
    of_older = frames.COMMANDS.unpack(json.loads(json.dumps(frames.COMMANDS.pack(report, OLDEST))))
    assert of_older == report._replace(expected_per_s=())


@given(st.binary(max_size=200))
def test_no_bytes_raise_another_error(packed: bytes) -> None:
    with suppress(BadFrame):
        decode_frame(packed)


def test_models_of_wrong_types_are_refused() -> None:
    model = ["m", 1.0, 4096, 4.0, 0.0, ["chat"]]
    packed = ["w", "w", "http://w", "m", 8, 4096, 4.0, 0.0, False, 0.0, 0, [], [], [model]]
    assert frames.COMMANDS.unpack(list(packed)).models == (LoadableModel("m", 1.0, 4096, 4.0, 0.0, ("chat",)),)
    for wrong in (["m"], [*model[:1], "soon", *model[2:]], [*model[:5], [7]], "m", 7):
        with pytest.raises(BadFrame, match="Field 12 of a Report has the wrong type"):
            frames.COMMANDS.unpack([*packed[:-1], [wrong]])
