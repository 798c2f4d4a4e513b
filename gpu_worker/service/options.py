"""The worker's command line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.fleet import BATCH_MAX, SLOTS_MAX, Capability
from gpu_worker.engines.registry import DTYPES, ENGINES
from gpu_worker.service.agent import AgentSettings
from gpu_worker.service.modelled_profile import ModelledProfile, load_modelled_profile
from gpu_worker.service.tiers_file import WorkerTiers, load_tiers

_MEMORY_MAX = 99_999
_CONTEXT_MAX = _KV_TOKENS_MAX = 100_000_000
_KV_TOKENS_MIN = 64
_STEP_TOKENS_MAX = 1_000_000
_SLEEPING_ENGINES = ("vllm", "modelled")
_SLEEPING = " or ".join(_SLEEPING_ENGINES)
GB = 1_000_000_000
_KEY_VARIABLE = "ENGINE_API_KEY"
"""The environment variable with the API key of the engine's server: a command line is no place for a secret."""
_EPILOG = "With --engine vllm, all arguments after -- are those of vLLM's own server: -- --tensor-parallel-size 4"
_TRANSFORMERS_OPTIONS = ("kv_tokens", "step_tokens", "dtype")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class _OptionParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"gpu_worker: {message}\n")


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. An invalid one exits with 2 and one line on standard error."""
    parser = _OptionParser(
        prog="python -m gpu_worker", description="Serve a model as one worker of a pool.", epilog=_EPILOG
    )
    parser.add_argument("--engine", choices=ENGINES, default="transformers")
    parser.add_argument("--policy", default="tiered:vtc", help="the engine's queue policy; tiered:POLICY has tiers")
    tiers_help = "shares, preemption, targets, shedding: a YAML file, or a JSON object"
    parser.add_argument("--tiers", type=_tiers, default=WorkerTiers(), metavar="FILE|JSON", help=tiers_help)
    model_help = (
        "a local Hugging Face model; default: a tiny one is built. With --engine openai or modelled: its name. "
        "Repeat it for a worker that swaps models: the first is loaded at the start"
    )
    parser.add_argument("--model", action="append", default=None, dest="models", help=model_help)
    load_help = "with --engine modelled: the seconds that loading a model takes; repeat it, once for each --model"
    parser.add_argument("--load-s", type=_seconds, action="append", default=None, metavar="SECONDS", help=load_help)
    profile_help = "with --engine modelled: step times and memory, a YAML file or a JSON object; once for each --model"
    parser.add_argument(
        "--profile", type=_profile, action="append", default=None, metavar="FILE|JSON", help=profile_help
    )
    wake_help = "with --engine modelled: the seconds until a sleeping model is awake; once for each --model"
    parser.add_argument("--wake-s", type=_seconds, action="append", default=None, metavar="SECONDS", help=wake_help)
    weights_help = "with --engine modelled: the GB of host memory that a sleeping model takes; once for each --model"
    parser.add_argument("--weights-gb", type=_gb, action="append", default=None, metavar="GB", help=weights_help)
    sleep_help = (
        f"GB of host memory for sleeping models, with --engine {_SLEEPING}; 0: none sleeps, the others are stopped"
    )
    parser.add_argument("--sleep-memory-gb", type=_gb, default=0.0, metavar="GB", help=sleep_help)
    level_help = "of vLLM's sleep: 1 keeps the weights in host memory, 2 reads them from disk again at each wake-up"
    parser.add_argument("--sleep-level", type=int, choices=(1, 2), default=1, help=level_help)
    parser.add_argument("--slots", type=_number(1, SLOTS_MAX), default=8, help="executions at the same time")
    batch_help = "sequences in the engine's batch; with --engine openai: in the server at the same time"
    parser.add_argument("--batch", type=_number(1, BATCH_MAX), default=4, help=batch_help)
    swap_help = "GiB of host memory for swapped KV; 0: an evicted request is computed again"
    _add_server_options(parser)
    _add_transformers_options(parser)
    parser.add_argument("--swap-gib", type=_gib, default=0.0, metavar="GIB", help=swap_help)
    drain_help = "at SIGTERM, running requests may end for so long; whoever sends SIGKILL must wait longer"
    parser.add_argument("--drain-s", type=_seconds, default=AgentSettings().drain_s, metavar="SECONDS", help=drain_help)
    emf_help = "write the metrics to standard output so often, as lines that CloudWatch makes metrics of; 0: never"
    parser.add_argument("--emf-s", type=_seconds, default=0.0, metavar="SECONDS", help=emf_help)
    notice_help = "a file in which the machine announces its end (gpu_worker/service/spot_notice.py)"
    parser.add_argument("--notice", type=Path, default=None, metavar="FILE", help=notice_help)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=_number(0, 65535), default=0, help="0: a free one")
    parser.add_argument("--advertise", default=None, help="host name or address by which the gate reaches this worker")
    parser.add_argument("--pool", type=_name, default=None, help="the pool that it serves; default: HEADGATE_POOL")
    parser.add_argument(
        "--worker-id",
        type=_name,
        default=None,
        help="unique in its pool; default: its task's id in ECS, elsewhere a new one",
    )
    parser.add_argument("--home", type=Path, default=Path(".headgate"), help="folder for a built model and the outbox")
    outbox_help = "folder for reports that the gate has not confirmed; shared by a host's workers; default: HOME/outbox"
    parser.add_argument("--outbox", type=Path, default=None, metavar="DIR", help=outbox_help)
    words, separator, rest = _at_separator(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(words)
    options.arguments = rest
    if separator and options.engine != "vllm":
        parser.error(f"arguments after -- are for vLLM's server: --engine {options.engine} takes none")
    options.models = options.models or [None]
    if len(set(options.models)) < len(options.models):
        parser.error(f"--model names a model twice: {', '.join(options.models)}")
    for name, usual in (("load_s", 0.0), ("wake_s", 0.0), ("weights_gb", 0.0), ("profile", None)):
        given = getattr(options, name) or [usual] * len(options.models)
        if len(given) != len(options.models):
            option = "--" + name.replace("_", "-")
            parser.error(f"{len(given)} {option} for {len(options.models)} --model: give one for each, or none")
        setattr(options, name, given)
    if options.sleep_memory_gb and options.engine not in _SLEEPING_ENGINES:
        parser.error(f"--sleep-memory-gb is for --engine {_SLEEPING}: --engine {options.engine} cannot sleep")
    if options.sleep_level == 2 and (options.engine != "vllm" or not options.sleep_memory_gb):
        parser.error("--sleep-level 2 is for --engine vllm with --sleep-memory-gb")
    for name in _TRANSFORMERS_OPTIONS:
        if getattr(options, name) is not None and options.engine != "transformers":
            hint = "; vLLM's own arguments follow --" if options.engine == "vllm" else ""
            parser.error(f"--{name.replace('_', '-')} is for --engine transformers, not {options.engine}{hint}")
    if len(options.models) > 1 and options.engine == "openai":
        parser.error("--engine openai serves one model: its server has its own swaps. Name one with --model")
    options.outbox = options.outbox or options.home / "outbox"
    return options


def _at_separator(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    """Return the arguments before the first `--`, whether there is one, and those after it."""
    if "--" not in arguments:
        return arguments, False, []
    place = arguments.index("--")
    return arguments[:place], True, arguments[place + 1 :]


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("--engine openai", f"The server's API key is read from {_KEY_VARIABLE}.")
    server.add_argument("--url", default=None, help="of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1")
    context_help = "the model's context length; default: the server reports it"
    server.add_argument("--context-tokens", type=_number(1, _CONTEXT_MAX), default=None, metavar="N", help=context_help)
    names_help = f"what the server supports, of {', '.join(Capability)}; default: by the kind of server"
    server.add_argument("--capabilities", type=_capabilities, default=None, metavar="NAMES", help=names_help)


def _add_transformers_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("--engine transformers", "The start prints the sizes in use.")
    kv_help = "tokens of the KV cache; default: what the GPU can hold, on a CPU 8192"
    group.add_argument(
        "--kv-tokens", type=_number(_KV_TOKENS_MIN, _KV_TOKENS_MAX), default=None, metavar="N", help=kv_help
    )
    step_help = "tokens of a step at most: longer prompts are computed in pieces; default: 2048 on a GPU, 512 on a CPU"
    group.add_argument("--step-tokens", type=_number(1, _STEP_TOKENS_MAX), default=None, metavar="N", help=step_help)
    dtype_help = "type of weights and cache; default: auto, on a GPU the model's own or bfloat16, on a CPU float32"
    group.add_argument("--dtype", choices=DTYPES, default=None, help=dtype_help)


def transformers_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the sizes and the type of the transformers engine that were given, as make_engine takes them."""
    given = {name: getattr(options, name) for name in _TRANSFORMERS_OPTIONS}
    return {name: value for name, value in given.items() if value is not None}


def server_options(options: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the openai engine's server, as make_engine takes them."""
    return {
        "url": options.url,
        "key": environment.get(_KEY_VARIABLE) or None,
        "context_tokens": options.context_tokens,
        "capabilities": options.capabilities,
    }


def modelled_options(options: argparse.Namespace, number: int) -> dict[str, Any]:
    """Return the times and the memory of the modelled engine of the model `number`, as make_engine takes them."""
    profile: ModelledProfile | None = options.profile[number]
    return {
        "load_s": options.load_s[number],
        "wake_s": options.wake_s[number],
        "sleep_bytes": int(options.weights_gb[number] * GB),
        **({} if profile is None else {"steps": profile.model_dump()}),
    }


def _capabilities(text: str) -> frozenset[str]:
    names = frozenset(text.split(","))
    if unknown := sorted(names - set(Capability)):
        raise argparse.ArgumentTypeError(f"{unknown[0][:20]!r} is none of {', '.join(Capability)}")
    return names


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number from {least} to {most}")
        return int(text)

    return number


def _gib(text: str) -> float:
    return _amount(text, "GiB")


def _gb(text: str) -> float:
    return _amount(text, "GB")


def _amount(text: str, unit: str) -> float:
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,6})?", text):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a number of {unit} from 0 to {_MEMORY_MAX}")
    return float(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a number of seconds from 0 to 9999")
    return float(text)


def _tiers(text: str) -> WorkerTiers:
    try:
        return load_tiers(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _profile(text: str) -> ModelledProfile:
    try:
        return load_modelled_profile(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:70]!r} is not 1 to 64 letters, digits, dots, dashes and underscores")
    return text
