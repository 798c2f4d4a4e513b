"""The arguments of vLLM's server: those after `--` on the worker's command line, and those that the worker adds. Pure.

The worker adds what it needs to reach the server and to see its stats, and defaults that the operator can replace.
Arguments that would break either are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from dispatcher.model.fleet import ADAPTER_PREFIX, TEXT, Capability
from gpu_worker.engines.vllm.adapters import OPTION, Adapter, adapter_defaults, max_loras, parse_adapters

ARGUMENT_PREFIX = "headgate_"
"""Prefix of the dispatcher's fields in `vllm_xargs`, which are vLLM's `SamplingParams.extra_args`."""
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("--host", "--port", "--uds", "--root-path"), "the worker reaches the server over its own socket"),
    **dict.fromkeys(("--ssl-keyfile", "--ssl-certfile"), "the worker reaches the server over its own socket"),
    **dict.fromkeys(("--grpc", "--headless"), "the worker needs vLLM's HTTP server"),
    "--api-key": "nothing but the worker can reach the server",
    "--api-server-count": "the worker reads its stats from one API server",
    "--scheduler-cls": "the worker sets headgate's scheduler; choose its policy with --policy",
    "--scheduling-policy": "headgate's scheduler orders by the tiers of the gate; choose its policy with --policy",
    "--kv-transfer-config": "the worker sets headgate's connector; set its memory with --swap-gib",
    "--disable-log-stats": "the worker reads its stats from vLLM's stats",
    "--enable-log-requests": "the log must not have the texts of tenants",
    "--enable-sleep-mode": "the worker sets it; choose the memory of sleeping models with --sleep-memory-gb",
    "--config": "the worker does not read files of arguments; write them after --",
    **dict.fromkeys(
        ("--data-parallel-size", "-dp", "--data-parallel-rank", "--data-parallel-start-rank"),
        "each replica would have a scheduler of its own; start a worker for each replica",
    ),
    **dict.fromkeys(
        ("--pipeline-parallel-size", "-pp"),
        "headgate's scheduler was never tested with it; use --tensor-parallel-size",
    ),
}
_GENERATES = TEXT | {
    Capability.SAMPLING,
    Capability.CHOICES,
    Capability.LOGPROBS,
    Capability.STRUCTURED,
    Capability.VLLM,
}


class Arguments:
    """Arguments as vLLM's server reads them: options with dashes or underscores, and a model without `--model`."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._values: dict[str, tuple[str, ...]] = {}
        for place, word in enumerate(self.words):
            if word.startswith("-"):
                name, equals, value = word.partition("=")
                following = takewhile(lambda each: each[:2] != "--", self.words[place + 1 :])
                self._values[_dashes(name)] = (value,) if equals else tuple(following)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> str | None:
        """Return the (first) value of an option; an empty text for one without a value, None for one not given."""
        values = self._values.get(name)
        return None if values is None else next(iter(values), "")

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The LoRA adapters. Raises ValueError for what is none."""
        return parse_adapters(self._values.get(OPTION, ()))

    @property
    def max_loras(self) -> int | None:
        """The adapters that the server holds at once; None without any. Raises ValueError for what is no adapter."""
        return max_loras(self.adapters, self.get("--max-loras"))


def checked(words: Sequence[str]) -> Arguments:
    """Return the arguments, with a leading model as `--model`. Raises ValueError for one that the worker cannot
    allow."""
    if words and not words[0].startswith("-"):
        words = ["--model", *words]
    arguments = Arguments(words)
    for name, reason in REFUSED.items():
        if name in arguments:
            raise ValueError(f"{name} cannot be set after --: {reason}")
    if "--enable-lora" in arguments and not arguments.adapters:
        raise ValueError(f"--enable-lora needs the adapters: name them with {OPTION} NAME=PATH")
    return arguments


def server_words(
    arguments: Arguments,
    *,
    model: str,
    name: str,
    batch: int,
    swap_bytes: int,
    headgate: Mapping[str, Any],
    sleeps: bool = False,
) -> list[str]:
    """Return all arguments of the server, but for its socket. `headgate`: the settings of our scheduler. `sleeps`: the
    server can sleep; its developer mode would log the stack of each error, which may have texts of tenants.

    Raises ValueError for an `--additional-config` that is not a JSON object, and for an adapter with the model's name.
    """
    if name in {adapter.name for adapter in arguments.adapters}:
        raise ValueError(f"{OPTION}: the adapter {name!r} has the name of the model")
    defaults = {
        **adapter_defaults(arguments.adapters),
        "--model": model,
        "--served-model-name": name,
        "--max-num-seqs": str(batch),
        "--enable-prompt-tokens-details": "",  # the gate charges cached tokens as the engine does
    }
    if "--tool-call-parser" in arguments:
        # Without it, vLLM leaves the arguments of a tool that is not `strict` free: a named tool's can be `false`.
        defaults |= {"--tool-strict-level": "parameter", "--enable-auto-tool-choice": ""}
    words = [*arguments.words, *(word for word in _missing(arguments, defaults) if word)]
    words += ["--additional-config", json.dumps(_additional(arguments) | {"headgate": dict(headgate)})]
    if swap_bytes:
        words += ["--kv-transfer-config", json.dumps(_transfer(swap_bytes))]
    if sleeps:
        words += ["--enable-sleep-mode", "--no-log-error-stack"]
    return [
        *words,
        "--disable-uvicorn-access-log",
        "--middleware",
        "gpu_worker.engines.vllm.stats_endpoint.StatsEndpoint",
    ]


def served_name(arguments: Arguments, model: str) -> str:
    """Return the model's name for tenants: `--served-model-name`, or the last part of the model's path."""
    return arguments.get("--served-model-name") or PurePath(model).name


def capabilities(arguments: Arguments, *, reads_images: bool) -> frozenset[str]:
    """Return what the server supports with these arguments."""
    if arguments.get("--runner") == "pooling" or arguments.get("--convert") == "embed":
        return frozenset({Capability.EMBEDDINGS, Capability.VLLM})
    found = _GENERATES
    if "--tool-call-parser" in arguments:
        found |= {Capability.TOOLS}
    if "--reasoning-parser" in arguments:
        found |= {Capability.REASONING}
    if reads_images and "--language-model-only" not in arguments:
        found |= {Capability.IMAGES}
    return found | {ADAPTER_PREFIX + adapter.name for adapter in arguments.adapters}


def _missing(arguments: Arguments, defaults: Mapping[str, str]) -> list[str]:
    return [word for name, value in defaults.items() if name not in arguments for word in (name, value)]


def _additional(arguments: Arguments) -> dict[str, Any]:
    text = arguments.get("--additional-config")
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("--additional-config is not a JSON object")
    return found


def _transfer(swap_bytes: int) -> dict[str, Any]:
    return {
        "kv_connector": "SwapConnector",
        "kv_connector_module_path": "gpu_worker.engines.vllm.swap",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"swap_gib": swap_bytes / (1 << 30)},
    }


def _dashes(name: str) -> str:
    """Return an option's name as REFUSED has it: without a part of its value, as in `--additional-config.key`."""
    return name.partition(".")[0].replace("_", "-")
