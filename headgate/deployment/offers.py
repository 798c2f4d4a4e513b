"""Checks whether a pool's zones offer its GPU instance types, by the dated table offers.json beside this file.

The table lists the GPU instance types that each zone of AWS offers. It is for errors before a deployment. AWS adds
offers all the time, so `check_zones: false` in headgate.yaml turns it off, and `headgate doctor before` asks AWS
itself. A region that the table does not have is not checked.

In its oldest regions a zone of the same name is another place in each account. There the table has the zones' ids,
and only their number is checked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
