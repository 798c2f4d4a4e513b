"""Removes from an engine's text what shows how the service is built: keys, addresses, paths and tracebacks. Pure.

A tenant gets such a text only for its own faults. It can quote the engine's address, its key, or a file.
"""

from __future__ import annotations

import re

_TRACEBACK = re.compile(r"\s*(Traceback \(most recent call last\)|\n\s*File \"|\n\s*at [\w.$<>]+\().*", re.DOTALL)
_NAMED_KEY = re.compile(
    r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"
    r"|\b(api[ _-]?key|x-api-key|access[ _-]?key|secret|token|password|passwd|authorization|credential)s?"
    r"(\s*(?:[:=]|\bis\b|\bwas\b|\bprovided:)\s*['\"]?|\s+['\"]?(?=[\w~+/=-]*[\d_-]))(?!\d+\b)[\w.~+/=*-]{6,}"
)
_KEY = re.compile(
    r"\b(?:sk|pk|rk|hg|hf|gsk|xai|nvapi|ghp|gho|glpat|key|AIza|AKIA|ASIA|eyJ)[-_]?[A-Za-z0-9*][\w.*-]{5,}"
    r"|(?<![\w-])(?=[\w+/=-]*\d)(?=[\w+/=-]*[A-Za-z])[\w+/=-]{32,}"
)
_URL = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>)\]}]+")
_PORT = r"(?::\d{1,5})?"
_ADDRESS = re.compile(
    rf"(?<![\w.])\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?![\w.]*\d\.){_PORT}"
    r"|\[[0-9a-fA-F]*:[0-9a-fA-F:.]+\](?::\d{1,5})?"
    r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F:]{1,4}(?![\w:])"
    rf"|\blocalhost\b{_PORT}"
    rf"|\b(?:[\w-]+\.)+(?:internal|local|localdomain|lan|corp|svc|cluster|compute|amazonaws\.com|intranet)\b[\w.]*{_PORT}"
    r"|\b[\w-]+(?:\.[\w-]+)*:\d{4,5}\b"
    r"|\bip-\d{1,3}(?:-\d{1,3}){3}\b"
)
_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+){2,}/?|\b[A-Za-z]:\\[^\s'\"]+")


def redact(text: str) -> str:
    """Return the text with a word in brackets in the place of each key, address and path, and no traceback."""
    text = _TRACEBACK.sub("", text)
    text = _URL.sub("[address]", text)
    text = _NAMED_KEY.sub(lambda found: f"{found[1] or found[2]} [key]", text)
    text = _KEY.sub("[key]", text)
    text = _ADDRESS.sub("[address]", text)
    return _PATH.sub("[path]", text).strip()
