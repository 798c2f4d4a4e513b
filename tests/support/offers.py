"""Makes headgate/deployment/offers.json: `python -m tests.support.offers`.

moto packs the answers of EC2's DescribeInstanceTypeOfferings of the days before its release; RELEASED is the date of
the files in the wheel of the version that constraints/ pins. A new version of moto therefore needs a new RELEASED.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import moto

from headgate.deployment.instances import FILE, INSTANCE_TYPES

MOTO, RELEASED = "5.2.5", "2026-10-27"
MAPPED_PER_ACCOUNT = frozenset(
    {
        *("us-east-1", "us-west-1", "us-west-2", "eu-west-1"),
        *("ap-northeast-1", "ap-southeast-1", "ap-southeast-2", "sa-east-1"),
    }
)
"""Regions that existed in November 2012: there the names of zones mean something else in each account, so zones have
their ids (AWS, "AZ IDs")."""
OFFERINGS = Path(moto.__file__).parent / "ec2" / "resources" / "instance_type_offerings"


def made() -> dict[str, Any]:
    """Return the table: for each region the GPU instance types of headgate by zone."""
    regions = sorted(path.name.removesuffix(".json.gz") for path in (OFFERINGS / "availability-zone").iterdir())
    return {
        "as_of": RELEASED,
        "source": f"EC2's DescribeInstanceTypeOfferings, as moto {MOTO} contains it",
        "regions": {region: _by_zone(region) for region in regions},
    }


def _by_zone(region: str) -> dict[str, list[str]]:
    kind = "availability-zone-id" if region in MAPPED_PER_ACCOUNT else "availability-zone"
    offers = json.loads(gzip.decompress((OFFERINGS / kind / f"{region}.json.gz").read_bytes()))
    types: dict[str, list[str]] = defaultdict(list)
    for offer in offers:
        found = types[offer["Location"]]  # a zone without GPU instances is listed too
        if offer["InstanceType"] in INSTANCE_TYPES:
            found.append(offer["InstanceType"])
    return {zone: sorted(types[zone]) for zone in sorted(types)}


def as_text(table: dict[str, Any]) -> str:
    """Return the table as JSON with a line for each zone."""
    zones = {
        region: ",\n".join(f"   {json.dumps(zone)}: {json.dumps(types)}" for zone, types in by_zone.items())
        for region, by_zone in table["regions"].items()
    }
    regions = ",\n".join(f"  {json.dumps(region)}: {{\n{lines}\n  }}" for region, lines in zones.items())
    head = "\n".join(f" {json.dumps(key)}: {json.dumps(table[key])}," for key in ("as_of", "source"))
    return f'{{\n{head}\n "regions": {{\n{regions}\n }}\n}}\n'


if __name__ == "__main__":
    FILE.write_text(as_text(made()), encoding="utf-8")
