"""An unmodified boto3 against real awslambdaric processes: what Lambda would answer is what comes back."""

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.local.aws_fixtures import call, function, local_aws
from tests.support.hang_guard import HANG_S
from tests.support.local.aws import aws_client

pytestmark = [pytest.mark.stack]


async def invoke(lambda_client: Any, name: str, payload: object = None, **more: Any) -> Any:
    return await call(lambda_client.invoke, FunctionName=name, Payload=json.dumps(payload), **more)


async def body_of(answer: Any) -> Any:
    return json.loads(await asyncio.to_thread(answer["Payload"].read))


async def test_answers_are_the_handler_s_and_environments_stay_warm(tmp_path: Path) -> None:
    functions = [function("echo", environment={"TEST_MODE": "on"})]
    async with local_aws(tmp_path, functions) as (_, url):
        api = aws_client("lambda", url)
        answer = await invoke(api, "echo", {"text": "grüß dich"})
        first = await body_of(answer)
        assert first["event"] == {"text": "grüß dich"}
        assert (answer["StatusCode"], answer["ExecutedVersion"]) == (200, "$LATEST")
        assert "FunctionError" not in answer
        assert first["request_id"] == answer["ResponseMetadata"]["RequestId"]
        assert first["function"] == "echo"
        assert 0 < first["remaining_ms"] <= HANG_S * 1000
        assert first["env"]["TEST_MODE"] == "on"

        context = base64.b64encode(b'{"custom": {"a": "b"}}').decode()
        arn = "arn:aws:lambda:us-east-1:123456789012:function:echo"
        second = await body_of(await invoke(api, arn, Qualifier="live", ClientContext=context))
        assert second["pid"] == first["pid"]
        assert second["calls"] == 2
        assert second["arn"] == arn + ":live"
        assert second["client_context"] == {"a": "b"}

        with pytest.raises(ClientError, match=r"ResourceNotFoundException.*echo:next"):
            await invoke(api, "echo:next")

        nothing = await call(api.invoke, FunctionName="echo")
        assert (await body_of(nothing))["event"] == {}


async def test_a_handler_sees_none_of_this_machine_s_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_aws(tmp_path, [function("echo")]) as (_, url):
        api = aws_client("lambda", url)
        monkeypatch.setenv("AWS_PROFILE", "production")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "secret")
        seen = (await body_of(await invoke(api, "echo")))["env"]
    assert seen["AWS_ACCESS_KEY_ID"] == "local"
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN"} & set(seen)


async def test_an_unhandled_error_is_answered_and_the_environment_kept(tmp_path: Path) -> None:
    async with local_aws(tmp_path, [function("fail")]) as (_, url):
        api = aws_client("lambda", url)
        for what in ("bread", "milk"):
            answer = await invoke(api, "fail", {"what": what}, LogType="Tail")
            assert (answer["StatusCode"], answer["FunctionError"]) == (200, "Unhandled")
            payload = await body_of(answer)
            assert (payload["errorType"], payload["errorMessage"]) == ("ValueError", f"no {what} here")
            assert "stackTrace" in payload
            assert f"no {what} here" in base64.b64decode(answer["LogResult"]).decode()
    assert len(list((tmp_path / "logs").glob("lambda-fail-*.log"))) == 1


async def test_an_error_longer_than_a_usual_header(tmp_path: Path) -> None:
    """awslambdaric repeats the message in an X-Ray header of up to 1 MB."""
    async with local_aws(tmp_path, [function("fail")]) as (_, url):
        what = "x" * 300_000
        answer = await invoke(aws_client("lambda", url), "fail", {"what": what})
        payload = await body_of(answer)
    assert payload["errorMessage"] == f"no {what} here"


async def test_a_timeout_kills_and_the_next_caller_gets_a_new_environment(tmp_path: Path) -> None:
    async with local_aws(tmp_path, [function("hang", timeout_s=0.5)]) as (_, url):
        api = aws_client("lambda", url)
        for _ in range(2):
            answer = await invoke(api, "hang")
            assert answer["FunctionError"] == "Unhandled"
            payload = await body_of(answer)
            assert payload["errorType"] == "Sandbox.Timedout"
            request_id = answer["ResponseMetadata"]["RequestId"]
            assert payload["errorMessage"] == f"RequestId: {request_id} Error: Task timed out after 0.50 seconds"


async def test_a_crash_in_the_middle_is_an_exit_error(tmp_path: Path) -> None:
    async with local_aws(tmp_path, [function("leave")]) as (_, url):
        api = aws_client("lambda", url)
        for status in (7, 0):
            answer = await invoke(api, "leave", {"status": status})
            payload = await body_of(answer)
            assert answer["FunctionError"] == "Unhandled"
            assert payload["errorType"] == "Runtime.ExitError"
            assert payload["errorMessage"].endswith(f"Error: Runtime exited with error: exit status {status}")


@pytest.mark.parametrize(
    ("handler", "error_type"),
    [
        ("broken.handler", "KeyError"),
        ("basic.nothing", "Runtime.HandlerNotFound"),
        ("no.x", "Runtime.ImportModuleError"),
    ],
)
async def test_a_handler_that_does_not_load(tmp_path: Path, handler: str, error_type: str) -> None:
    async with local_aws(tmp_path, [function("broken", handler)]) as (_, url):
        answer = await invoke(aws_client("lambda", url), "broken")
        assert answer["FunctionError"] == "Unhandled"
        assert (await body_of(answer))["errorType"] == error_type


async def test_an_answer_too_large(tmp_path: Path) -> None:
    async with local_aws(tmp_path, [function("big")]) as (_, url):
        answer = await invoke(aws_client("lambda", url), "big")
        assert (await body_of(answer))["errorType"] == "Function.ResponseSizeTooLarge"


async def test_one_more_than_the_concurrency_is_refused_at_once(tmp_path: Path) -> None:
    async with local_aws(tmp_path, [function("wait")]) as (_, url):
        api = aws_client("lambda", url)
        started, until = tmp_path / "started", tmp_path / "until"
        os.mkfifo(started)
        os.mkfifo(until)
        first = asyncio.create_task(invoke(api, "wait", {"started": str(started), "until": str(until)}))
        assert await asyncio.to_thread(started.read_text) == "yes"
        with pytest.raises(api.exceptions.TooManyRequestsException) as refused:
            await invoke(api, "wait", {})
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
        assert refused.value.response["Reason"] == "ReservedFunctionConcurrentInvocationLimitExceeded"
        await asyncio.to_thread(until.write_text, "go on")
        assert await body_of(await first) == "done"


async def test_an_event_is_tried_three_times_under_one_id(tmp_path: Path) -> None:
    async with local_aws(tmp_path, [function("fail_twice")]) as (aws, url):
        attempts = tmp_path / "attempts"
        answer = await invoke(
            aws_client("lambda", url), "fail_twice", {"attempts": str(attempts)}, InvocationType="Event"
        )
        assert answer["StatusCode"] == 202
        assert await asyncio.to_thread(answer["Payload"].read) == b""
        await aws.events_done("fail_twice")
        assert attempts.read_text().split() == [answer["ResponseMetadata"]["RequestId"]] * 3


async def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    async with local_aws(tmp_path, [function("leave")]) as (_, url):
        answer = await invoke(aws_client("lambda", url), "leave", {}, InvocationType="DryRun")
        assert answer["StatusCode"] == 204
        assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"FunctionName": "absent"}, 404, "ResourceNotFoundException"),
        ({"FunctionName": "echo", "Payload": b"{"}, 400, "InvalidRequestContentException"),
        ({"FunctionName": "echo", "Payload": b'{"a": NaN}'}, 400, "InvalidRequestContentException"),
        ({"FunctionName": "echo", "Payload": b"\xff"}, 400, "InvalidRequestContentException"),
        ({"FunctionName": "echo", "Payload": b"[" * 200_000}, 400, "InvalidRequestContentException"),
        ({"FunctionName": "echo", "Payload": b'"' + b"x" * 6_300_000 + b'"'}, 413, "RequestTooLargeException"),
        (
            {"FunctionName": "echo", "Payload": b'"' + b"x" * 1_100_000 + b'"', "InvocationType": "Event"},
            413,
            "RequestTooLargeException",
        ),
        ({"FunctionName": "echo", "ClientContext": "!"}, 400, "InvalidRequestContentException"),
        ({"FunctionName": "echo", "InvocationType": "Later"}, 400, "InvalidParameterValueException"),
    ],
)
async def test_what_lambda_refuses_is_refused_in_its_words(
    tmp_path: Path, asked: dict[str, Any], status: int, code: str
) -> None:
    async with local_aws(tmp_path, [function("echo")]) as (_, url):
        with pytest.raises(ClientError) as refused:
            await call(aws_client("lambda", url).invoke, **asked)
    assert refused.value.response["Error"]["Code"] == code
    assert refused.value.response["Error"]["Message"]
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert refused.value.response["ResponseMetadata"]["RequestId"]


async def test_functions_are_listed_and_described(tmp_path: Path) -> None:
    async with local_aws(tmp_path, [function("echo"), function("fail")]) as (_, url):
        api = aws_client("lambda", url)
        listed = await call(api.list_functions)
        assert [f["FunctionName"] for f in listed["Functions"]] == ["echo", "fail"]
        assert (await call(api.get_function, FunctionName="echo"))["Configuration"]["MemorySize"] == 512
        assert (await call(api.get_function_configuration, FunctionName="fail"))["Timeout"] == HANG_S
        with pytest.raises(ClientError, match="NotImplemented"):
            await call(api.delete_function, FunctionName="echo")
