"""Seeded bugs: each takes a rule away, or makes a mistake that is easy to make. The oracles must find every one.

registry   a bug, and how production code is changed for a while
rules      the rules of docs/gate.md, each removed
mistakes   other mistakes, and those that were made in similar software
planted    a pytest plugin that runs other tests with a bug in the code
"""

from tests.support.world.storm.bugs import mistakes as _mistakes
from tests.support.world.storm.bugs import rules as _rules
from tests.support.world.storm.bugs.registry import BUGS as BUGS

__all__ = ["BUGS", "_mistakes", "_rules"]
