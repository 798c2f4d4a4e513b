"""EC2's GPU instance types: what a worker can use of each, and which zones offer it.

What a worker can use is as of November 2026, from AWS's pages of instance types. The zones are in the dated table
offers.json beside this file. It is for errors before a deployment. AWS adds offers all the time, so `check_zones:
false` in headgate.yaml turns it off, and `headgate doctor before` asks AWS.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class InstanceType(NamedTuple):
    """`gpu_gb`: memory of one GPU. `disk_gb`: local NVMe disks together."""

    gpus: int
    gpu_gb: int
    vcpus: int
    memory_gb: int
    disk_gb: int


INSTANCE_TYPES = {
    # L40S
    "g6e.xlarge": InstanceType(1, 48, 4, 32, 250),
    "g6e.2xlarge": InstanceType(1, 48, 8, 64, 450),
    "g6e.4xlarge": InstanceType(1, 48, 16, 128, 600),
    "g6e.8xlarge": InstanceType(1, 48, 32, 256, 900),
    "g6e.16xlarge": InstanceType(1, 48, 64, 512, 1_900),
    "g6e.12xlarge": InstanceType(4, 48, 48, 384, 3_800),
    "g6e.24xlarge": InstanceType(4, 48, 96, 768, 3_800),
    "g6e.48xlarge": InstanceType(8, 48, 192, 1_536, 7_600),
    # L4
    "g6.xlarge": InstanceType(1, 24, 4, 16, 250),
    "g6.2xlarge": InstanceType(1, 24, 8, 32, 450),
    "g6.4xlarge": InstanceType(1, 24, 16, 64, 600),
    "g6.8xlarge": InstanceType(1, 24, 32, 128, 900),
    "g6.12xlarge": InstanceType(4, 24, 48, 192, 3_760),
    "g6.24xlarge": InstanceType(4, 24, 96, 384, 3_760),
    "g6.48xlarge": InstanceType(8, 24, 192, 768, 7_520),
    # A10G
    "g5.xlarge": InstanceType(1, 24, 4, 16, 250),
    "g5.2xlarge": InstanceType(1, 24, 8, 32, 450),
    "g5.4xlarge": InstanceType(1, 24, 16, 64, 600),
    "g5.8xlarge": InstanceType(1, 24, 32, 128, 900),
    "g5.12xlarge": InstanceType(4, 24, 48, 192, 3_800),
    "g5.24xlarge": InstanceType(4, 24, 96, 384, 3_800),
    "g5.48xlarge": InstanceType(8, 24, 192, 768, 7_600),
    # A100, H100, H200
    "p4d.24xlarge": InstanceType(8, 40, 96, 1_152, 8_000),
    "p4de.24xlarge": InstanceType(8, 80, 96, 1_152, 8_000),
    "p5.48xlarge": InstanceType(8, 80, 192, 2_048, 30_400),
    "p5e.48xlarge": InstanceType(8, 141, 192, 2_048, 30_400),
    "p5en.48xlarge": InstanceType(8, 141, 192, 2_048, 30_400),
}


def near(name: str) -> str:
    """Return the known types that look like `name`, separated by commas; without such, the first ones of the table."""
    return ", ".join(get_close_matches(name, INSTANCE_TYPES, n=4, cutoff=0.5) or list(INSTANCE_TYPES)[:4])


FILE = Path(__file__).parent / "offers.json"


class OfferProblem(NamedTuple):
    """What the table says against a pool. `zones`: those that offer one of its types."""

    what: str
    zones: Sequence[str]


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return table


def as_of() -> str:
    """Return the date of the table, as YYYY-MM-DD."""
    return str(_table()["as_of"])


def problem(region: str, types: Sequence[str], zones: int | Collection[str]) -> OfferProblem | None:
    """Return why a pool with these instance types cannot run in these zones; None if it can. A number means the first
    zones in alphabetical order, as for CloudFormation's Fn::GetAZs."""
    offers: Mapping[str, Sequence[str]] | None = _table()["regions"].get(region)
    if offers is None:
        return None
    offered = {each for found in offers.values() for each in found}
    missing = [each for each in types if each not in offered]
    if missing:
        return OfferProblem(f"{region} has no {', '.join(missing)}; it has {', '.join(sorted(offered)) or 'none'}", ())
    usable = [zone for zone, found in offers.items() if not set(types).isdisjoint(found)]
    if _have_names(region, offers):
        wanted = sorted(offers)[:zones] if isinstance(zones, int) else zones
        without = sorted(set(wanted) - set(usable))
        return OfferProblem(f"{', '.join(without)} has none of {', '.join(types)}", usable) if without else None
    number = zones if isinstance(zones, int) else len(zones)
    if len(usable) < number:
        return OfferProblem(
            f"{len(usable)} zones of {region} have {' or '.join(types)}, and {number} are wanted", usable
        )
    return None


def _have_names(region: str, offers: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the table names the zones as the account does. If not, it has the zones' ids."""
    return all(zone.startswith(region) for zone in offers)
