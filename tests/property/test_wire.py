"""Whatever a stranger sends: a Request, or InvalidRequest in words that repeat none of it. Never anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Endpoint, Request, request_from_json
from dispatcher.neutral_fields import MESSAGE, REQUEST
from dispatcher.strict_json import parse_object
from dispatcher.wire import parse_request

CANARY = "canary-3f9c1e"
T = TypeVar("T")
FIELDS = [
    *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "seed", "stop", "stream"),
    *("stream_options", "user", "metadata", *REQUEST),
]
edges = st.sampled_from(
    [
        0,
        1,
        -1,
        2,
        2**31,
        2**63,
        -(2**63),
        10**400,
        -(10**400),
        1e308,
        -0.0,
        1e-320,
        "",
        "\x00",
        " ",
        "\U0001f600",
        CANARY,
    ]
)
values = st.recursive(
    st.none() | st.booleans() | edges | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "system", "assistant", "king"]) | values,
            "content": st.just(CANARY)
            | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": values}))
            | values,
            "name": values,
            "extra": values,
            **{name: st.none() | st.sampled_from([*neutral, CANARY]) for name, neutral in MESSAGE.items()},
        },
    ),
    max_size=3,
)
bodies = st.dictionaries(st.sampled_from(FIELDS), values, max_size=6).flatmap(
    lambda some: st.fixed_dictionaries(
        {}, optional={"model": st.just("m"), "messages": messages, "prompt": st.just(CANARY) | values}
    ).map(lambda usual: {**some, **usual})
)


def outcome(parse: Callable[[], T]) -> T | InvalidRequest:
    try:
        return parse()
    except InvalidRequest as error:
        return error


@settings(max_examples=400, deadline=None)
@given(bodies, st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETION, None]))
@example({"model": "m", "prompt": "p", "temperature": 10**400}, None)
@example({"model": "m", "prompt": "p", "max_tokens": 10**400}, Endpoint.COMPLETION)
def test_a_body_is_a_request_or_is_refused(body: dict[str, Any], endpoint: Endpoint | None) -> None:
    asked = outcome(lambda: parse_request(parse_object(json.dumps(body)), endpoint=endpoint))
    if isinstance(asked, InvalidRequest):
        written = json.dumps(asked.body())
        assert asked.status in (400, 413)
        assert CANARY not in written or body.get("model") == CANARY
        assert len(written) < 1000
        return
    assert isinstance(asked, Request)
    assert request_from_json(asked.to_json()) == asked
    assert asked.prompt_bytes() >= 0
    assert len(asked.fingerprint()) == 64


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]":,0123456789eE+-.\\u dtrufalsn', max_size=60))
def test_what_looks_like_json_is_an_object_or_is_refused(raw: str) -> None:
    value = outcome(lambda: parse_object(raw))
    if isinstance(value, InvalidRequest):
        assert value.code in ("invalid_json", "request_too_large")
    else:
        assert parse_object(json.dumps(value)) == value or "Infinity" in json.dumps(value)
