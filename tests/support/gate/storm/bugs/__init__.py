"""Seeded bugs: each takes a rule away, or makes a mistake that is easy to make. The oracles must find every one.

registry   a bug, and how production code is changed for a while
rules      the rules of docs/gate.md, each removed
mistakes   other mistakes
careless   more of them: in what undoes and searches after an error, in what reads the log, and in the order
public_reports   mistakes that were made in similar software
planted    a pytest plugin that runs other tests with a bug in the code
"""

from tests.support.gate.storm.bugs import careless as _careless
from tests.support.gate.storm.bugs import mistakes as _mistakes
from tests.support.gate.storm.bugs import public_reports as _public_reports
from tests.support.gate.storm.bugs import rules as _rules
from tests.support.gate.storm.bugs.registry import BUGS as BUGS

__all__ = ["BUGS", "_careless", "_mistakes", "_public_reports", "_rules"]
