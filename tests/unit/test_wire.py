"""What enters the gate: strict JSON, OpenAI's bodies, and refusals that name the field and never repeat a prompt."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.config import load_config
from dispatcher.model.errors import ConfigurationError, InvalidRequest, RequestTooLarge
from dispatcher.model.requests import Endpoint, request_from_json
from dispatcher.strict_json import BODY_BYTES_MAX, DEPTH_MAX, parse_object
from dispatcher.wire import parse_request

CANARY = "canary-7f3a"
CHAT = {"model": "m", "messages": [{"role": "user", "content": CANARY}]}


class TestStrictJson:
    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"{",
            b"[1]",
            b'"x"',
            b"\xff\xfe",
            b'{"a": NaN}',
            b'{"a": Infinity}',
            b'{"a": 1, "a": 2}',
            b'{"a": "\\ud800"}',
            b'{"a":' + b"[" * 100_000,
            json.dumps({"a": 1}).replace("1", "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)).encode(),
            b'{"a": ' + b"9" * 10_000 + b"}",
        ],
    )
    def test_refused(self, raw: bytes) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_object(raw)
        assert (caught.value.status, caught.value.code) == (400, "invalid_json")

    def test_too_large(self) -> None:
        with pytest.raises(RequestTooLarge) as caught:
            parse_object(b" " * (BODY_BYTES_MAX + 1))
        assert caught.value.status == 413

    @given(
        st.dictionaries(
            st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)
        )
    )
    def test_what_json_writes_is_read_back(self, value: dict[str, Any]) -> None:
        assert parse_object(json.dumps(value)) == value

    @given(st.binary(max_size=200))
    def test_nothing_but_the_two_errors_ever(self, raw: bytes) -> None:
        with suppress(InvalidRequest):
            parse_object(raw)


class TestOpenAI:
    def test_chat(self) -> None:
        asked = parse_request({**CHAT, "max_completion_tokens": 7, "temperature": 0, "stop": "x", "stream": True})
        assert asked.endpoint is Endpoint.CHAT
        assert (asked.max_tokens, asked.stream) == (7, True)
        assert asked.body == {"messages": CHAT["messages"], "temperature": 0.0, "stop": ["x"]}

    def test_completion(self) -> None:
        asked = parse_request({"model": "m", "prompt": "p", "stop": ["a", "b"], "seed": 3})
        assert asked.endpoint is Endpoint.COMPLETION
        assert asked.body == {"prompt": "p", "stop": ["a", "b"], "seed": 3}

    def test_text_parts_are_joined(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        asked = parse_request({"model": "m", "messages": [{"role": "user", "content": parts}]})
        assert asked.body["messages"] == [{"role": "user", "content": "ab"}]

    @pytest.mark.parametrize(
        ("change", "param", "code"),
        [
            ({"n": 2}, "n", "unsupported_parameter"),
            ({"n": True}, "n", "unsupported_parameter"),
            ({"tools": [{}]}, "tools", "unsupported_parameter"),
            ({"surprise": 1}, "surprise", "unknown_parameter"),
            ({"x" * 500: 1}, "x" * 100, "unknown_parameter"),
            ({"max_tokens": 0}, "max_tokens", "invalid_value"),
            ({"max_tokens": "5"}, "max_tokens", "invalid_value"),
            ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
            ({"temperature": 3}, "temperature", "invalid_value"),
            ({"seed": 10**30}, "seed", "invalid_value"),
            ({"stop": ["a"] * 5}, "stop", "invalid_value"),
            ({"stop": ""}, "stop", "invalid_value"),
            ({"model": ""}, "model", "invalid_value"),
            ({"model": None}, "model", "invalid_value"),
            ({"messages": []}, "messages", "invalid_value"),
            ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role", "invalid_value"),
            ({"messages": [{"role": "user"}]}, "messages.0.content", "missing_required_parameter"),
            ({"prompt": "both"}, "messages", "invalid_value"),
        ],
    )
    def test_the_field_is_named_and_the_value_is_not(self, change: dict[str, Any], param: str, code: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_request({**CHAT, **change})
        assert (caught.value.param, caught.value.code) == (param, code)
        assert CANARY not in json.dumps(caught.value.body())

    @pytest.mark.parametrize(
        "name",
        [
            "priority",
            "tier",
            "weight",
            "tenant",
            "cache_salt",
            "vllm_xargs",
            "kv_transfer_params",
            "deadline_at",
            "timeout_s",
            "app",
            "stage",
            "interaction",
            "prompt_embeds",
        ],
    )
    def test_what_the_gate_alone_says_is_refused_from_a_client(self, name: str) -> None:
        values: tuple[Any, ...] = (0, "x", {})
        for value in values:
            with pytest.raises(InvalidRequest) as caught:
                parse_request({**CHAT, name: value})
            assert (caught.value.param, caught.value.code) == (name, "unknown_parameter")

    @pytest.mark.parametrize("name", ["user", "safety_identifier", "prompt_cache_key"])
    def test_what_is_about_the_tenants_own_users_changes_nothing(self, name: str) -> None:
        assert parse_request({**CHAT, name: "premium"}) == parse_request(CHAT)

    def test_no_service_tier_is_a_clients_to_choose(self) -> None:
        with pytest.raises(InvalidRequest):
            parse_request({**CHAT, "service_tier": "priority"})

    @pytest.mark.parametrize("stage", ["3", 3])
    def test_metadata_says_what_a_request_is_part_of(self, stage: object) -> None:
        metadata = {"headgate_application": "chat.v2", "headgate_stage": stage, "headgate_interaction": "i-7", "x": "y"}
        asked = parse_request({**CHAT, "metadata": metadata})
        assert (asked.app, asked.stage, asked.interaction) == ("chat.v2", 3, "i-7")
        assert asked.fingerprint() == parse_request(CHAT).fingerprint(), "it decides no answer"
        assert request_from_json(asked.to_json()) == asked

    @pytest.mark.parametrize("metadata", [None, {}, {"a": "b"}, {"tier": "premium", "weight": 9}])
    def test_other_metadata_is_as_ignored(self, metadata: object) -> None:
        assert parse_request({**CHAT, "metadata": metadata}) == parse_request(CHAT)

    def test_metadata_that_is_null_is_not_set(self) -> None:
        unset = {"headgate_application": None, "headgate_stage": None, "headgate_interaction": None}
        assert parse_request({**CHAT, "metadata": unset}) == parse_request(CHAT)

    @pytest.mark.parametrize("metadata", ["text", [1], 7, True])
    def test_metadata_is_an_object(self, metadata: object) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_request({**CHAT, "metadata": metadata})
        assert (caught.value.param, caught.value.code) == ("metadata", "invalid_value")
        assert caught.value.message == "Invalid `metadata`: an object of strings is required."

    @pytest.mark.parametrize(
        ("metadata", "param", "code"),
        [
            ({"headgate_stage": -1}, "metadata.headgate_stage", "invalid_value"),
            ({"headgate_stage": "9999"}, "metadata.headgate_stage", "invalid_value"),
            ({"headgate_stage": "٣"}, "metadata.headgate_stage", "invalid_value"),
            ({"headgate_stage": True}, "metadata.headgate_stage", "invalid_value"),
            ({"headgate_application": "a" * 65}, "metadata.headgate_application", "invalid_value"),
            ({"headgate_application": ""}, "metadata.headgate_application", "invalid_value"),
            ({"headgate_interaction": CANARY + "\n"}, "metadata.headgate_interaction", "invalid_value"),
            ({"headgate_interaction": 7}, "metadata.headgate_interaction", "invalid_value"),
            ({"headgate_tier": None}, "metadata.headgate_tier", "unknown_parameter"),
            ({"headgate_tier": "premium"}, "metadata.headgate_tier", "unknown_parameter"),
            ({"headgate_cache_salt": "x"}, "metadata.headgate_cache_salt", "unknown_parameter"),
        ],
    )
    def test_and_ours_is_bounded(self, metadata: dict[str, Any], param: str, code: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_request({**CHAT, "metadata": metadata})
        assert (caught.value.param, caught.value.code) == (param, code)
        assert CANARY not in json.dumps(caught.value.body())

    def test_a_request_kept_before_there_were_such_fields_is_read(self) -> None:
        kept = json.loads(parse_request(CHAT).to_json())
        for name in ("app", "stage", "interaction"):
            del kept[name]
        assert request_from_json(json.dumps(kept)) == parse_request(CHAT)

    def test_the_fingerprint_is_of_what_decides_the_answer(self) -> None:
        plain = parse_request(CHAT)
        assert parse_request({**CHAT, "stream": True}).fingerprint() == plain.fingerprint()
        assert parse_request({**CHAT, "max_tokens": 3}).fingerprint() != plain.fingerprint()

    def test_a_request_survives_being_kept(self) -> None:
        for body in (CHAT, {"model": "m", "prompt": "p", "stop": ["a"], "seed": 1}):
            asked = parse_request(body)
            assert request_from_json(asked.to_json()) == asked


class TestConfig:
    def test_defaults_and_variables(self) -> None:
        assert load_config({}).table == "headgate"
        assert load_config({"HEADGATE_ORDER": "fcfs", "OTHER": "x"}).order == "fcfs"

    @pytest.mark.parametrize(("name", "value"), [("HEADGATE_DEADLINE_S", "soon"), ("HEADGATE_ORDER", "random")])
    def test_what_is_wrong_is_named(self, name: str, value: str) -> None:
        with pytest.raises(ConfigurationError, match=name):
            load_config({name: value})
