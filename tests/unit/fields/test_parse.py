"""OpenAI's bodies become Requests, or are refused with the name of the field and without its value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.fields.kinds import DROPPED_MAX, needs_of
from dispatcher.fields.parse import parse, parse_request
from dispatcher.fields.tables import TABLES
from dispatcher.model.errors import InvalidRequest
from dispatcher.model.requests import Endpoint, request_from_json

CANARY = "canary-7f3a"
USER = {"role": "user", "content": CANARY}
CHAT: dict[str, Any] = {"model": "m", "messages": [USER]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def refusal(body: dict[str, Any], endpoint: Endpoint | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body, endpoint)
    assert CANARY not in json.dumps(caught.value.body())
    return caught.value


class TestRequests:
    def test_chat(self) -> None:
        given = {**CHAT, "max_completion_tokens": 7, "temperature": 0, "stop": "x", "stream": True, "n": 2}
        request = parse_request(given)
        assert (request.endpoint, request.max_tokens, request.stream, request.choices) == (Endpoint.CHAT, 7, True, 2)
        assert request.body == {"messages": [USER], "temperature": 0.0, "stop": ["x"]}

    def test_completion(self) -> None:
        request = parse_request({"model": "m", "prompt": ["p"], "stop": ["a", "b"], "seed": 3})
        assert request.endpoint is Endpoint.COMPLETION
        assert request.body == {"prompt": "p", "stop": ["a", "b"], "seed": 3}

    def test_a_list_with_one_prompt_is_the_prompt(self) -> None:
        ids = parse_request({"model": "m", "prompt": [1, 2]})
        assert parse_request({"model": "m", "prompt": [[1, 2]]}) == ids
        assert next(needs_of(ids.body, TABLES[Endpoint.COMPLETION])) == ("prompt", ("vllm", "token_ids"))

    @pytest.mark.parametrize("prompts", [["a", "b"], [[1], [2]]])
    def test_several_prompts_are_refused_with_advice(self, prompts: list[Any]) -> None:
        with pytest.raises(InvalidRequest) as caught:
            parse_request({"model": "m", "prompt": prompts})
        advice = "a list of one value is required; send one request for each prompt."
        assert caught.value.message == f"Invalid `prompt`: {advice}"

    @pytest.mark.parametrize("given", ["text", ["a", "b"], [1, 2, 3], [[1], [2, 3]]])
    def test_embeddings(self, given: object) -> None:
        request = parse_request({"model": "m", "input": given, "encoding_format": "base64", "user": "u"})
        assert request.endpoint is Endpoint.EMBEDDINGS
        assert request.body == {"input": given, "encoding_format": "base64"}

    def test_tools_and_their_messages_are_passed_unchanged(self) -> None:
        given: list[dict[str, Any]] = [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "7"}]},
        ]
        request = parse_request({**CHAT, "messages": given, "tools": [TOOL], "tool_choice": "required"})
        assert request.body["messages"] == [USER, {**given[1], "content": ""}, given[2]]
        assert (request.body["tools"], request.body["tool_choice"]) == ([TOOL], "required")

    def test_what_clients_add_to_an_answers_message_is_dropped(self) -> None:
        """The openai SDK's `parse()`, streams, and LiteLLM add fields, and send them back in the next turn."""
        added = {"provider_specific_fields": {"x": 1}}
        function = {"name": "f", "arguments": "{}", "parsed_arguments": {"a": 1}, **added}
        calls = [{**CALL, "function": function, "index": 0, **added}]
        message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls, "parsed": {}, **added}
        request = parse_request({**CHAT, "messages": [USER, message]})
        assert request.body["messages"][1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}

    def test_stream_options(self) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
        request = parse_request({**CHAT, "stream": True, "stream_options": options})
        assert request.include_usage
        assert request.body == {"messages": [USER]}

    def test_the_fingerprint_is_of_what_decides_the_answer(self) -> None:
        plain = parse_request(CHAT)
        assert parse_request({**CHAT, "stream": True}).fingerprint() == plain.fingerprint()
        for changed in ({"max_tokens": 3}, {"n": 2}, {"tools": [TOOL]}, {"seed": 1}):
            assert parse_request({**CHAT, **changed}).fingerprint() != plain.fingerprint()

    def test_the_input_names_the_endpoint_if_nothing_else_does(self) -> None:
        assert parse_request({**CHAT, "prompt": None, "input": None}) == parse_request(CHAT)
        for fields in (
            {},
            {"messages": None},
            {"prompt": None},
            {**CHAT, "prompt": "once"},
            {"prompt": "", "input": ""},
        ):
            with pytest.raises(InvalidRequest, match="exactly one of `messages`"):
                parse_request({"model": "m", **fields})
        assert refusal({**CHAT, "prompt": None}, Endpoint.CHAT).code == "unknown_parameter"


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "param", "code"),
        [
            ({"n": 0}, "n", "invalid_value"),
            ({"n": True}, "n", "invalid_value"),
            ({"tools": [{}]}, "tools.0.function", "missing_required_parameter"),
            ({"tools": [{"type": "custom", "custom": {}}]}, "tools.0.type", "unsupported_parameter"),
            ({"surprise": 1}, "surprise", "unknown_parameter"),
            ({"surprise": None}, "surprise", "unknown_parameter"),
            ({"x" * 500: 1}, "x" * 100, "unknown_parameter"),
            ({"max_tokens": 0}, "max_tokens", "invalid_value"),
            ({"max_tokens": "5"}, "max_tokens", "invalid_value"),
            ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
            ({"stop": ""}, "stop", "invalid_value"),
            ({"model": ""}, "model", "invalid_value"),
            ({"model": None}, "model", "invalid_value"),
            ({"messages": []}, "messages", "invalid_value"),
            ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role", "invalid_value"),
            ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role", "unsupported_parameter"),
            ({"messages": [{"role": "user"}]}, "messages.0.content", "missing_required_parameter"),
            ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "invalid_value"),
            ({"messages": [USER, 7]}, "messages.1", "invalid_value"),
            ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id", "missing_required_parameter"),
            ({"messages": [{**USER, "surprise": 1}]}, "messages.0.surprise", "unknown_parameter"),
            ({"stream_options": {"surprise": 1}}, "stream_options.surprise", "unknown_parameter"),
            ({"service_tier": "priority"}, "service_tier", "unsupported_parameter"),
            ({"logits_processors": ["x"]}, "logits_processors", "unsupported_parameter"),
            ({"prompt_embeds": "x"}, "prompt_embeds", "unsupported_parameter"),
            ({"chat_template": "{{ x }}"}, "chat_template", "unsupported_parameter"),
            ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", "invalid_value"),
            ({"use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
            ({"functions": [{}]}, "functions", "unsupported_parameter"),
        ],
    )
    def test_the_field_is_named_and_the_value_is_not(self, change: dict[str, Any], param: str, code: str) -> None:
        error = refusal({**CHAT, **change}, Endpoint.CHAT)
        assert (error.param, error.code, error.status) == (param, code, 400)

    @pytest.mark.parametrize(
        "name",
        [
            *("priority", "tier", "weight", "tenant", "cache_salt", "vllm_xargs", "kv_transfer_params", "request_id"),
            *("deadline_at", "timeout_s", "app", "stage", "interaction", "ec_transfer_params", "session_id"),
        ],
    )
    @pytest.mark.parametrize("endpoint", list(Endpoint))
    def test_a_client_cannot_send_a_field_that_headgate_sets(self, name: str, endpoint: Endpoint) -> None:
        body = {"model": "m", endpoint.prompt_field: [USER] if endpoint is Endpoint.CHAT else "x"}
        values: tuple[Any, ...] = (0, "x", {}, False, CANARY)
        for value in values:
            error = refusal({**body, name: value}, endpoint)
            assert (error.param, error.code) == (name, "unsupported_parameter")
            assert "cannot be sent by a client" in error.message
        assert parse_request({**body, name: None}, endpoint) == parse_request(body, endpoint)

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
            ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tool_choice": NAMED}, "tool_choice"),
            (
                {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]},
                "tool_choice.function.name",
            ),
            ({"tools": [TOOL, TOOL]}, "tools"),
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
            ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ],
    )
    def test_fields_that_contradict_each_other(self, fields: dict[str, Any], param: str) -> None:
        error = refusal({**CHAT, **fields}, Endpoint.CHAT)
        assert (error.param, error.code) == (param, "invalid_value")

    def test_fields_that_agree(self) -> None:
        assert parse_request({**CHAT, "max_tokens": 3, "max_completion_tokens": 3}).max_tokens == 3
        idle = {"tool_choice": "auto", "parallel_tool_calls": False, "tools": []}
        assert parse_request({**CHAT, **idle}) == parse_request(CHAT)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("service_tier", "flex",
             '`service_tier` is not supported at this value: leave it out or send null or "auto" or "default". '
             "The tenant's configuration has the tier; `metadata.headgate_slo_class` may name a laxer SLO class."),
            ("best_of", 3, "`best_of` is not supported at this value: leave it out or send null or 1. Use `n`."),
            ("top_p", 2, "Invalid `top_p`: a number above 0 and up to 1 is required."),
            ("n", 200, "Invalid `n`: a whole number from 1 to 128 is required."),
            ("max_tokens", 0, "Invalid `max_tokens`: a whole number of at least 1 is required."),
            ("moderation", {}, "`moderation` is not supported: leave it out. The gate has no moderation."),
            ("logit_bias", {"word": 1},
             "Invalid `logit_bias`: each key must be a text of 1 to 10 characters (a token id)."),
        ],
    )  # fmt: skip
    def test_a_refusal_says_what_to_do(self, name: str, value: Any, message: str) -> None:
        assert refusal({**CHAT, name: value}).message == message


class TestUnknownFields:
    def test_they_are_dropped_and_named_if_the_pool_is_configured_so(self) -> None:
        body = {**CHAT, "surprise": CANARY, "messages": [{**USER, "x": 1}], "stream_options": {"y": 2}}
        parsed = parse(body, drop_unknown=True)
        assert parsed.request == parse_request(CHAT)
        assert sorted(parsed.dropped) == ["messages.0.x", "stream_options.y", "surprise"]

    @pytest.mark.parametrize("fields", [{"tenant": "b"}, {"chat_template": "x"}, {"metadata": {"headgate_tier": "x"}}])
    def test_known_refused_fields_are_still_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest):
            parse({**CHAT, **fields}, drop_unknown=True)

    def test_their_number_is_bounded(self) -> None:
        parse({**CHAT, **{f"x{number}": 1 for number in range(DROPPED_MAX)}}, drop_unknown=True)
        with pytest.raises(InvalidRequest, match="unknown parameters"):
            parse({**CHAT, **{f"x{number}": 1 for number in range(DROPPED_MAX + 1)}}, drop_unknown=True)


class TestMetadata:
    @pytest.mark.parametrize("stage", ["3", 3])
    def test_it_names_what_a_request_is_part_of(self, stage: object) -> None:
        slo = parse_request({**CHAT, "metadata": {"headgate_slo_class": "night"}})
        assert slo.slo_class == "night"
        metadata = {"headgate_application": "chat.v2", "headgate_stage": stage, "headgate_interaction": "i-7", "x": "y"}
        request = parse_request({**CHAT, "metadata": metadata})
        assert (request.app, request.stage, request.interaction) == ("chat.v2", 3, "i-7")
        assert request.fingerprint() == parse_request(CHAT).fingerprint(), "it decides no answer"
        assert request_from_json(request.to_json()) == request

    @pytest.mark.parametrize(
        "metadata",
        [
            None,
            {},
            {"a": "b"},
            {"tier": "premium", "weight": 9},
            {"headgate_application": None, "headgate_stage": None, "headgate_interaction": None},
        ],
    )
    def test_other_metadata_is_ignored(self, metadata: object) -> None:
        assert parse_request({**CHAT, "metadata": metadata}) == parse_request(CHAT)

    @pytest.mark.parametrize("metadata", ["text", [1], 7, True])
    def test_metadata_is_an_object(self, metadata: object) -> None:
        error = refusal({**CHAT, "metadata": metadata})
        assert (error.param, error.code) == ("metadata", "invalid_value")
        assert error.message == "Invalid `metadata`: an object of strings is required."

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
    def test_its_own_keys_are_bounded(self, metadata: dict[str, Any], param: str, code: str) -> None:
        error = refusal({**CHAT, "metadata": metadata})
        assert (error.param, error.code) == (param, code)
