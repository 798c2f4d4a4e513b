"""The error in what a server sent: its status, its text for a tenant, and what it means for the request. Pure.

The status is the HTTP status if that is an error. Otherwise it is that of the error object's code, type or status, as a
number or as a word (kinds.STATUSES), and 500 if none of them is known.

A tenant gets the text only for its own faults. The text can quote the engine's address, its key, or a file. So what
shows how the service is built is removed from it: keys, addresses, paths and tracebacks.

| the server's answer | error |
| --- | --- |
| 400, 413, 422 | the request's own fault: `context_length_exceeded` if code or text says so, else `invalid_request` |
| 429, 503, 529 | `engine_overloaded`, with the status and the Retry-After (service/health) |
| anything else | `generation_failed`: the gate tries again |

Each error has the server's status, and its Retry-After.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpu_worker.engines.interface import EngineError, PromptTooLong
from gpu_worker.engines.openai.normal.kinds import CODE_NAMES, STATUSES, TEXT_NAMES, TOO_LONG, word
from gpu_worker.engines.openai.normal.values import without_surrogates

_TEXT_CHARS_MAX = 500
_READ_CHARS_MAX = 10_000
"""The most characters of a text, before keys and addresses are removed."""
_UNKNOWN = 500
_ERROR_LINE = re.compile(rb"\s*\[?(error|exception|internal server error)\b", re.IGNORECASE)
_PLACES = ("error", "errors", "fault", "exception", "base_resp")
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


class Fault(NamedTuple):
    """`is_too_long`: the error's code says that the prompt is too long."""

    status: int
    text: str = ""
    is_too_long: bool = False


def _fault_of_body(status: int, body: bytes) -> Fault:
    """Return the fault of an HTTP error. A body that is neither JSON nor one short line of text has no text."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return Fault(status, _plain(body))
    return fault_of(payload, status)


def fault_of(payload: Any, status: int | None = None) -> Fault:
    """Return the fault that an error object, a text or a body with one describes."""
    objects = list(_objects(payload))
    words = [word for each in objects for word in _words(each)]
    if status is None:
        status = next((found for each in objects if (found := _status(each)) is not None), _UNKNOWN)
    return Fault(status, _clean(_text(payload)), not TOO_LONG.isdisjoint(words))


def fault_in_chunk(chunk: Mapping[str, Any], name: str = "") -> Fault | None:
    """Return the fault in a chunk or a whole answer; None if it has none. `name`: of the server-sent event."""
    if name == "error":
        return fault_of(chunk)
    if chunk.get("choices"):
        return fault_of(chunk) if _says(chunk.get("error")) else None
    if any(_says(chunk.get(place)) for place in _PLACES):
        return fault_of(chunk)
    if chunk.get("object") == "error" or chunk.get("type") == "error":
        return fault_of(chunk)
    texts = (chunk.get("message"), chunk.get("error_message"), chunk.get("detail"))
    if any(each and isinstance(each, str | list) for each in texts) or isinstance(chunk.get("detail"), dict):
        return fault_of(chunk)
    return None


def fault_in_text(data: bytes, name: str) -> Fault | None:
    """Return the fault in an event that is no JSON; None if it does not look like one."""
    if name == "error" or _ERROR_LINE.match(data):
        return Fault(_UNKNOWN, _plain(data))
    return None


def redact(text: str) -> str:
    """Return the text with a word in brackets in the place of each key, address and path, and no traceback."""
    text = _TRACEBACK.sub("", text)
    text = _URL.sub("[address]", text)
    text = _NAMED_KEY.sub(lambda found: f"{found[1] or found[2]} [key]", text)
    text = _KEY.sub("[key]", text)
    text = _ADDRESS.sub("[address]", text)
    return _PATH.sub("[path]", text).strip()


def _says(error: Any) -> bool:
    """Return whether an `error` field is an error. Some servers send an empty one, or one of zeros, with an answer."""
    if isinstance(error, dict):
        return any(_says(each) for name, each in error.items() if name != "status_msg")
    return bool(error)


def _objects(payload: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of an error, the innermost first."""
    if isinstance(payload, list) and payload:
        payload = payload[0]
    if isinstance(payload, dict):
        for place in (*_PLACES, "detail", "message"):
            yield from _objects(payload.get(place))
        yield payload


def _status(error: Mapping[str, Any]) -> int | None:
    for name in CODE_NAMES:
        value = error.get(name)
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value.strip()[:9])
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return value
        if isinstance(value, str) and (found := STATUSES.get(_stem(value))) is not None:
            return found
    return None


def _words(error: Mapping[str, Any]) -> Iterator[str]:
    return (_stem(value) for name in CODE_NAMES if isinstance(value := error.get(name), str))


def _stem(name: str) -> str:
    """Return a code's word: `RateLimitError` and `rate_limit` are `ratelimit`."""
    return word(name).removesuffix("exception").removesuffix("error")


def _text(payload: Any, depth: int = 4) -> str:
    """Return the text of an error: of its object, or of each entry of a list, as `place: text`."""
    if isinstance(payload, str):
        return payload
    if isinstance(payload, list) and depth:
        return "; ".join(filter(None, (_entry(each, depth - 1) for each in payload[:10])))
    if not isinstance(payload, dict) or not depth:
        return ""
    names = (*_PLACES, *TEXT_NAMES)
    return next((text for name in names if (text := _text(payload.get(name), depth - 1))), "")


def _entry(entry: Any, depth: int) -> str:
    text = _text(entry, depth)
    place = entry.get("loc") if isinstance(entry, dict) else None
    if not text or not isinstance(place, list):
        return text
    return f"{'.'.join(str(each) for each in place if each != 'body')}: {text}"


def _plain(body: bytes) -> str:
    text = body[:_READ_CHARS_MAX].decode("utf-8", "replace").strip()
    return "" if "<" in text[:100] or "\n" in text else _clean(text)


def _clean(text: str) -> str:
    return redact(without_surrogates(text[:_READ_CHARS_MAX]))[:_TEXT_CHARS_MAX]


_OWN_FAULTS = frozenset({400, 413, 422})
_OVERLOADED = frozenset({429, 503, 529})
_TOO_LONG = re.compile(
    r"context.{0,3}(length|size|window)|maximum.{0,20}(length|tokens)|too long|max_model_len", re.IGNORECASE
)


def failed(reason: str, status: int | None = None, retry_after_s: float | None = None) -> EngineError:
    message = f"the engine failed on this request: {reason}"
    return EngineError("generation_failed", message, status=status, retry_after_s=retry_after_s)


def error_of_status(status: int, body: bytes, retry_after_s: float | None = None) -> EngineError:
    """Return the error of an HTTP error. `body`: as much of it as was read."""
    return error_of_fault(_fault_of_body(status, body), retry_after_s)


def error_of_fault(fault: Fault, retry_after_s: float | None = None) -> EngineError:
    """Return the error of a fault that the server reports, with an HTTP status or within an answer."""
    status = fault.status
    if status in _OWN_FAULTS:
        if fault.is_too_long or _TOO_LONG.search(fault.text):
            return PromptTooLong(fault.text or "the prompt is too long for the model", status=status)
        return EngineError("invalid_request", fault.text or "the engine refused the request as invalid", status=status)
    if status in _OVERLOADED:
        message = "the engine takes no more requests for now"
        return EngineError("engine_overloaded", message, status=status, retry_after_s=retry_after_s)
    return failed("it reported an error", status, retry_after_s)
