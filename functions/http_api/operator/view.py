"""The part of the fleet that an operator looks at: the pool, the searched tenants, and whether the page refreshes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode
from xml.etree.ElementTree import Element

from functions.http_api.operator.elements import element

PATH = "/operator"
HERE = "operator"
"""The page's address, relative to itself: API Gateway has its stage before the path, which no front knows."""


@dataclass(frozen=True, slots=True)
class View:
    """`pools`: all of them, and `pool` is the shown one. `find`: the text that tenants were searched by. `refreshes`:
    the browser loads the page again and again."""

    pool: str
    pools: Sequence[str]
    find: str = ""
    refreshes: bool = True

    def fields(self, *, without: str) -> list[Element]:
        """Return the hidden fields of a form that changes one part of the view and keeps the others."""
        kept = {name: value for name, value in self._query().items() if name != without}
        return [element("input", type="hidden", name=name, value=value) for name, value in kept.items()]

    def links(self) -> list[Element]:
        """Return the links to the pools, the shown one marked; none if there is only one pool."""
        if len(self.pools) == 1:
            return []
        shown = {self.pool: {"aria_current": "page"}}
        links = [element("a", name, href=self._address(name), **shown.get(name, {})) for name in self.pools]
        return [element("nav", *links, aria_label="Pools")]

    def _address(self, pool: str) -> str:
        return f"{HERE}?{urlencode({**self._query(), 'pool': pool})}"

    def _query(self) -> dict[str, str]:
        """Return what differs from the page without a query."""
        pool = {"pool": self.pool} if self.pool != self.pools[0] else {}
        find = {"find": self.find} if self.find else {}
        return {**pool, **find, **({} if self.refreshes else {"refresh": "off"})}
