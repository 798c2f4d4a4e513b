"""The LoRA adapters of vLLM's server: those that the operator names with vLLM's own `--lora-modules`, after `--`:

    python -m gpu_worker --engine vllm -- --model /models/llama --lora-modules sql=/adapters/sql law=/adapters/law

The worker registers each adapter at the gate as a capability of the model. A tenant asks for an adapter as for a model,
if its allow-list has the name (docs/pools.md). The worker adds the other arguments of LoRA where the operator leaves
them out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dispatcher.model.fleet import ADAPTERS_MAX

OPTION = "--lora-modules"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOADED_MAX = 4
"""The adapters in one batch by default. Each takes memory of the GPU, and vLLM's own default is one: then requests of
two adapters never run together."""
_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""What vLLM accepts as `--max-lora-rank`, from its default on."""


class Adapter(NamedTuple):
    """`path`: a folder, or what else vLLM can load an adapter from."""

    name: str
    path: str


def parse_adapters(words: Sequence[str]) -> tuple[Adapter, ...]:
    """Return the adapters of the words after `--lora-modules`, each NAME=PATH or JSON as vLLM reads it.

    Raises ValueError, with one sentence for a person.
    """
    adapters = tuple(map(_parse, filter(None, words)))
    names = [adapter.name for adapter in adapters]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{OPTION} names the adapter {twice[0]!r} twice")
    if len(adapters) > ADAPTERS_MAX:
        raise ValueError(f"{OPTION} has {len(adapters)} adapters: a worker has at most {ADAPTERS_MAX}")
    return adapters


def _parse(word: str) -> Adapter:
    name, equals, path = word.partition("=")
    if not equals or "," in word:
        try:
            fields = json.loads(word)
            name, path = fields["name"], fields["path"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{OPTION} takes NAME=PATH, not {word[:80]!r}") from None
    if not isinstance(name, str) or not NAME.fullmatch(name) or not isinstance(path, str) or not path:
        raise ValueError(
            f"{OPTION}: an adapter has a name of 1 to 64 letters, digits, dots, dashes and underscores, and a path; "
            f"not {word[:80]!r}"
        )
    return Adapter(name, path)


def adapter_defaults(adapters: Sequence[Adapter]) -> dict[str, str]:
    """Return the further arguments of a server with these adapters. All stay in host memory, so that each is read from
    disk once."""
    if not adapters:
        return {}
    count = len(adapters)
    found = {"--enable-lora": "", "--max-loras": str(min(count, _LOADED_MAX)), "--max-cpu-loras": str(count)}
    rank = max(map(_rank, adapters))
    return {**found, "--max-lora-rank": str(next((each for each in _RANKS if each >= rank), rank))}


def max_loras(adapters: Sequence[Adapter], given: str | None) -> int | None:
    """Return how many adapters the server holds at once; None without any. `given`: the operator's `--max-loras`."""
    if not adapters:
        return None
    return int(given) if given and given.isdecimal() else min(len(adapters), _LOADED_MAX)


def _rank(adapter: Adapter) -> int:
    """Return the rank in the adapter's own configuration; 0 if it cannot be read here."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return int(json.loads((Path(adapter.path) / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    return 0
