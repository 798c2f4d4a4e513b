"""Build the asset of the functions and of the front's image without Docker: wheels for arm64, and headgate's packages.

`build` writes build/lambda. infra/functions.lock pins its dependencies with their hashes; they are installed again only
when that file changes. `python -m infra.bundle lock` renews the lock, with the versions of constraints/headgate.txt, so
that the functions run with what the tests run with; `make constraints` renews both. `make bundle` prints sizes and
import times (infra/bundle_sizes.py).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON, PLATFORMS = "3.14", ("manylinux2014_aarch64", "manylinux_2_28_aarch64")
"""Lambda's python3.14 on arm64 (Amazon Linux 2023). infra/functions.py names the same runtime."""
PACKAGES = ("dispatcher", "functions")
_NOT_IN_FUNCTIONS = ("typer", "rich", "pyyaml", "prometheus-client", "httpx")
"""Dependencies that only the command line, the simulator and the worker need."""
AWS_SERVICES = ("autoscaling", "cloudwatch", "dynamodb", "ecs", "lambda", "s3", "secretsmanager", "sqs", "sts")
"""The services of which the bundle keeps botocore's descriptions. Those of all services are 24 MB of 56.
A client of another service would raise UnknownServiceError, so that a service belongs here before code calls it."""
DESCRIPTIONS = Path("botocore/data")
LOCK, FRONT = Path("infra/functions.lock"), Path("infra/run_front.sh")
IMAGE = Path("infra/front.Dockerfile")
_CONSTRAINTS = Path("constraints/headgate.txt")
_BUILD = Path("build/lambda")

_Pip = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Bundle:
    """A folder that Lambda can run, and a digest that changes if and only if its content changes."""

    path: Path
    digest: str


def _run_pip(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)  # noqa: S603


def build(root: Path, pip: _Pip = _run_pip) -> Bundle:
    """Build the asset in `root`/build/lambda. Raises CalledProcessError if pip cannot install a dependency."""
    target, stamp = root / _BUILD, root / _BUILD.with_suffix(".lock-digest")
    wanted = _digest([root / LOCK], root)
    if not (target.is_dir() and stamp.is_file() and stamp.read_text() == wanted):
        _install(root, target, pip)
        stamp.write_text(wanted)
    for package in PACKAGES:
        shutil.rmtree(target / package, ignore_errors=True)
        shutil.copytree(root / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / FRONT, target / "run.sh")
    shutil.copy(root / IMAGE, target / "Dockerfile")
    return Bundle(target, _digest(_sources(root), root))


def _sources(root: Path) -> list[Path]:
    """List the files that the bundle is made of, sorted."""
    files = [path for package in PACKAGES for path in (root / package).rglob("*") if path.is_file()]
    return sorted(
        [root / LOCK, root / FRONT, root / IMAGE, *(path for path in files if "__pycache__" not in path.parts)]
    )


def requirements(root: Path) -> list[str]:
    """Return the project's dependencies that the functions need."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return [each for each in project["dependencies"] if not each.startswith(_NOT_IN_FUNCTIONS)]


def lock(root: Path, pip: _Pip = _run_pip) -> None:
    """Resolve the requirements within constraints/headgate.txt and write infra/functions.lock."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        options = ["--constraint", str(root / _CONSTRAINTS), "--dry-run", "--ignore-installed", "--report", str(report)]
        pip(["install", *_target_options(Path(place)), *options, *requirements(root)])
        found = json.loads(report.read_text())["install"]
    lines = [_pin(each["metadata"], each["download_info"]["archive_info"]["hashes"]["sha256"]) for each in found]
    head = "# Written by `make constraints`: the exact packages that the Lambda functions run with.\n"
    (root / LOCK).write_text(head + "".join(sorted(lines, key=str.lower)))


def _pin(metadata: dict[str, str], sha256: str) -> str:
    return f"{metadata['name']}=={metadata['version']} --hash=sha256:{sha256}\n"


def _install(root: Path, target: Path, pip: _Pip) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    pip(["install", *_target_options(target), "--no-deps", "--require-hashes", "--requirement", str(root / LOCK)])
    strip(target)


def strip(target: Path) -> None:
    """Remove botocore's descriptions of the services that no function calls; its files about all services stay."""
    for service in (target / DESCRIPTIONS).glob("*/"):
        if service.name not in AWS_SERVICES:
            shutil.rmtree(service)


def _target_options(target: Path) -> list[str]:
    options = ["--quiet", "--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary=:all:"]
    platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
    return [*options, *platforms, "--implementation", "cp", "--python-version", PYTHON, "--target", str(target)]


def _digest(files: Sequence[Path], root: Path) -> str:
    """Digest the names and the contents of `files`, with the target platform and the services."""
    digest = hashlib.sha256(f"{PYTHON} {PLATFORMS} {AWS_SERVICES}".encode())
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


if __name__ == "__main__":
    here = Path(__file__).parents[1]
    if sys.argv[1:] == ["lock"]:
        lock(here)
    else:
        build(here)
