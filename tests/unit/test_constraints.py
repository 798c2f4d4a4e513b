"""The pinned versions: complete, within pyproject.toml's bounds, the same everywhere, and free of indexes and torch."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {
    "headgate.txt": ("local", "plots", "transformers", "dev", "infra"),
    "vllm.txt": ("local", "dev"),
}
ELSEWHERE = {"torch"}
"""Installed from wherever pip finds its CPU build, at the Makefile's TORCH_VERSION."""
ADVICE = "run `make constraints CONSTRAINTS_ARGS=--keep`"


@pytest.mark.parametrize("file", EXTRAS)
def test_every_dependency_is_pinned_within_its_bounds(file: str) -> None:
    pinned = pins(ROOT / "constraints" / file)
    for requirement in declared(EXTRAS[file]):
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{requirement} is not in constraints/{file}: {ADVICE}"
        for version in pinned[name]:
            assert requirement.specifier.contains(version), f"constraints/{file} has {name} {version}: {ADVICE}"


@pytest.mark.parametrize("file", EXTRAS)
def test_a_file_of_pins_names_no_index_and_no_torch(file: str) -> None:
    text = (ROOT / "constraints" / file).read_text()
    assert not re.search(r"://|^-|@ ", text, re.MULTILINE)
    assert not [name for name in pins(ROOT / "constraints" / file) if re.match(r"torch|triton|nvidia-|cuda-", name)]


def test_the_functions_run_with_the_versions_that_the_tests_run_with() -> None:
    pinned = pins(ROOT / "constraints/headgate.txt")
    locked = pins(ROOT / "infra/functions.lock")
    assert locked
    assert {name: versions for name, versions in locked.items() if not versions <= pinned[name]} == {}


def test_torch_has_one_version() -> None:
    (in_makefile,) = re.findall(r"^TORCH_VERSION := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extra = PROJECT["project"]["optional-dependencies"]["transformers"]
    (required,) = (each for each in map(Requirement, extra) if each.name == "torch")
    assert required.specifier.contains(in_makefile)


def declared(extras: tuple[str, ...]) -> list[Requirement]:
    """Return what pyproject.toml requires to build, to run, and for `extras`, less what is installed from elsewhere."""
    optional = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    lines += [line for extra in extras for line in optional[extra]]
    found = [Requirement(line) for line in lines]
    nested = [extra for each in found if each.name == PROJECT["project"]["name"] for extra in each.extras]
    found += declared(tuple(nested)) if nested else []
    return [each for each in found if each.name not in ELSEWHERE | {PROJECT["project"]["name"]}]


def pins(path: Path) -> dict[str, set[str]]:
    """Return the versions of each package: more than one if they differ by Python or platform."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text(), re.MULTILINE):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found
