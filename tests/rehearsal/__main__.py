"""Creates the stack in moto, starts its processes, and checks them: `make rehearse`.

moto runs no function and no container, and checks no policy, network or capacity. So the processes are real and have
the stack's settings, and what AWS itself does is not rehearsed (docs/operations.md lists it).
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from aws_cdk import App

from dispatcher.processes.bootstrap import RealIds
from headgate.deployment.model import Deployment
from headgate.local.aws import LocalAws
from headgate.local.seed import CREDENTIALS, REGION, session
from headgate.local.stack import base_environment
from headgate.machine.places import front_ports
from headgate.machine.processes import Children
from infra.app import make_app
from infra.bundle import Bundle
from infra.checks import synthesise
from tests.rehearsal.checks import Checks
from tests.rehearsal.moto_stack import Created, create
from tests.rehearsal.tasks import HERE, Service, Task

IMAGE = f"123456789012.dkr.ecr.{REGION}.amazonaws.com/worker@sha256:{'a' * 64}"
DEPLOYMENT = {
    "pools": {
        name: {
            "model": f"s3://models/{name}/",
            "image": IMAGE,
            "slots": 8,
            "batch": 4,
            "count": {"min": 1, "max": most},
        }
        for name, most in {"chat": 2, "code": 1}.items()
    },
    "slo_classes": {"interactive": {"first_token_s": 20}, "batch": {"first_token_s": 3600, "deferred": True}},
}
"""As headgate.yaml: two small pools, with a deferred class for batches."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="headgate-rehearsal-") as folder:
        home = Path(folder)
        template = _synthesised(home)
        return asyncio.run(_rehearse(template, home))


def _synthesised(home: Path) -> dict[str, Any]:
    """Synthesise over an empty bundle, and return the template."""
    bundle, out = home / "bundle", home / "cdk.out"
    bundle.mkdir()
    for name in ("run.sh", "Dockerfile"):
        (bundle / name).write_text("")
    synthesise(make_app(Deployment.model_validate(DEPLOYMENT), Bundle(bundle, "rehearsal"), App(outdir=str(out))))
    found: dict[str, Any] = json.loads((out / "Headgate.template.json").read_text())
    return found


def say(line: str) -> None:
    sys.stdout.write(f"· {line}\n")
    sys.stdout.flush()


async def _rehearse(template: dict[str, Any], home: Path) -> int:
    children = Children(RealIds().new(), home / "logs", temporary=home)
    aws: LocalAws | None = None
    following: list[asyncio.Task[None]] = []
    try:
        moto = await children.spawn_python("moto", ["-m", "headgate.local.moto_server"], environment=base_environment())
        moto_url = str((await moto.announcement(60.0))["url"])
        created = await asyncio.to_thread(create, session(), moto_url, template)
        _report(created)
        local = {
            **base_environment(),
            "AWS_ENDPOINT_URL": moto_url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "POWERTOOLS_TRACE_DISABLED": "true",
            "OMP_NUM_THREADS": "1",
        }
        aws = LocalAws(children, local, moto_url=moto_url, wiring=created.wiring)
        aws_url = await aws.start()
        (port,) = front_ports(HERE, 0, 1)
        front = Task("front", home / "front", children, local)
        await front.start(created.front, {"front": port})
        ecs = session().client("ecs", endpoint_url=moto_url)
        services = [Service(ecs, pool, workers) for pool, workers in created.workers.items()]
        following = [asyncio.create_task(service.run(home, children, local)) for service in services]
        file = home / "headgate.yaml"
        file.write_text(json.dumps(DEPLOYMENT))
        checks = Checks(f"http://{HERE}:{port}/v1", _client(aws_url), _administrator(aws_url, created), file, say)
        checking = asyncio.create_task(checks.run(_token(moto_url, created)))
        await asyncio.wait({*following, checking}, return_when=asyncio.FIRST_COMPLETED)
        for task in (checking, *following):
            if task.done():
                task.result()
        for service in services:
            say(f"desired counts of the pool {service.pool}: {', '.join(map(str, service.desired))}")
        say("the rehearsal passed")
        return 0
    except Exception as error:
        _show_logs(home)
        say(f"the rehearsal failed: {type(error).__name__}: {error}")
        return 1
    finally:
        for each in following:
            each.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        if aws is not None:
            await aws.stop()
        with suppress(ProcessLookupError):
            await children.stop()


def _report(created: Created) -> None:
    out = sum(map(len, created.left_out.values()))
    say(f"moto created {created.resources - out} of {created.resources} resources; it cannot create:")
    for kind, names in sorted(created.left_out.items()):
        say(f"  {len(names):2} {kind}")


def _client(aws_url: str) -> Any:
    made = session()
    return lambda service: made.client(service, endpoint_url=aws_url)


def _administrator(aws_url: str, created: Created) -> dict[str, str]:
    """Return the variables of an administrator's machine, as the stack's output says."""
    _, *words = shlex.split(created.outputs["OperatorShell"])
    own = dict(word.split("=", 1) for word in words)
    return {**base_environment(), **CREDENTIALS, **own, "AWS_ENDPOINT_URL": aws_url, "PYTHONPATH": str(Path.cwd())}


def _token(moto_url: str, created: Created) -> str:
    """Return the token of the operator's page, from the secret that the stack's output names."""
    client = session().client("secretsmanager", endpoint_url=moto_url)
    return str(client.get_secret_value(SecretId=created.outputs["OperatorToken"])["SecretString"])


def _show_logs(home: Path) -> None:
    for log in sorted((home / "logs").glob("*.log")):
        tail = log.read_text(errors="replace")[-1500:]
        sys.stdout.write(f"── {log.name}\n{tail}\n")


if __name__ == "__main__":
    sys.exit(main())
