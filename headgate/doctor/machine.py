"""Checks of the machine that runs `cdk deploy`: Node for the CDK, and Docker for the images that it builds.

`CDK_DOCKER` names another command than docker, as for the CDK.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from headgate.deployment.model import Deployment
from headgate.doctor.finding import Finding, failed, ok, skipped

NODE_MIN = 20
COMMAND_S = 20.0
ARM, X86 = "linux/arm64", "linux/amd64"


def check_node() -> Finding:
    """Check that Node is new enough for the CDK."""
    found = _output("node", "--version")
    if found is None:
        return failed("Node", "there is no command node that answers", f"install Node {NODE_MIN} or later, with npm")
    major = found.removeprefix("v").partition(".")[0]
    if not major.isdigit() or int(major) < NODE_MIN:
        return failed("Node", found, f"install Node {NODE_MIN} or later")
    return ok("Node", found)


def check_docker(deployment: Deployment) -> Finding:
    """Check that Docker builds for the platform of each image that the deployment needs."""
    images = _images(deployment)
    if not images:
        return skipped("Docker", "nothing is built: the front is a function, and each pool names its image")
    docker = os.environ.get("CDK_DOCKER", "docker")
    server = _output(docker, "version", "--format", "{{.Server.Version}} on {{.Server.Os}}/{{.Server.Arch}}")
    if server is None:
        advice = "start Docker; without it, use front: lambda, and name an image in each pool with a model"
        return failed("Docker", f"no engine answers {docker}, which builds {' and '.join(images)}", advice)
    can_build = f"{server} {_output(docker, 'buildx', 'inspect') or ''}"
    missing = sorted({each for each in images.values() if each not in can_build})
    if missing:
        advice = "install QEMU's emulation: docker run --privileged --rm tonistiigi/binfmt --install all"
        return failed("Docker", f"{server} cannot build for {', '.join(missing)}", advice)
    return ok("Docker", f"{server} builds {', '.join(f'{name} for {kind}' for name, kind in images.items())}")


def _images(deployment: Deployment) -> Mapping[str, str]:
    """Return the platforms of the images that `cdk deploy` builds (infra/), by image."""
    pools = deployment.pools.values()
    built = {
        "the front": (deployment.front == "fargate", ARM),
        "workers": (any(pool.model is not None and pool.image is None for pool in pools), X86),
        "workers before servers": (any(pool.servers for pool in pools), ARM),
    }
    return {image: platform for image, (is_built, platform) in built.items() if is_built}


def _output(command: str, *arguments: str) -> str | None:
    """Return what the command prints; None if it is missing, fails or does not answer."""
    path = shutil.which(command)
    if path is None:
        return None
    try:
        ended = subprocess.run(  # noqa: S603 - the command is one of this file
            [path, *arguments], capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None
