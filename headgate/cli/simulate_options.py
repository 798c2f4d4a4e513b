"""The options of `headgate simulate`, and the runs that follow from them.

All runs are checked before the first begins. A wrong option raises ConfigurationError, with one sentence that names it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.shards import SHARDS_MAX
from dispatcher.policies.orders.registry import DEFAULT_ORDER, ORDERS
from dispatcher.policies.service import service_function
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.engines.profile import DEFAULT_ENGINE, load_profile
from headgate.simulator.gates.spec import GateSpec, read_gate
from headgate.simulator.report.drawing import check_installed
from headgate.simulator.run import RunSpec
from headgate.workloads.columns import parse_columns
from headgate.workloads.sources import Workload, open_workload

_TRACE = (
    "FILE.csv, TENANT=FILE.csv (all rows are of this tenant), several of them, FILE.jsonl (Mooncake's format, with "
    "hashes of prompts) or FILE.yaml."
)
_POLICY = (
    "The engine's queue policy: fcfs, rpm:N, lcf, vtc, vtc-predict, vtc-noisy:0.5, vtc-oracle, vtc-cap:TOKENS, wsc, "
    "drr:QUANTUM, lpm, dlpm:QUANTUM, tiered:POLICY. Separate several with commas. Default: vtc, with --fit fcfs."
)
DEFAULT_POLICY = "vtc"
_ENGINE = f"Profile of step times: a name, or a profile's .yaml file. Default: {DEFAULT_ENGINE}."
_FIT = (
    "Fit a profile of step times to the LOG of a server: a CSV with arrival, first token, end and lengths of each "
    "request. Prints how well it repeats the log. The rules of admission are those of --engine, or else as wide as the "
    "log shows; --policy is the order in which the server admitted."
)
_PROFILE = "Write the fitted profile to this FILE.yaml, for --engine. Needs --fit."
_COLUMNS = (
    "Columns of a CSV with other names: KIND=NAME,KIND=NAME with the kinds arrival, input_tokens, output_tokens, "
    "tenant, app, model, and with --fit also first_token or ttft, and end or latency. A time may have a unit: NAME:ms."
)
_WEIGHTS = "Weights of tenants: TENANT=1,TENANT=2,…; 1 for the others."
_SERVICE = "How service is measured: weighted, tokens, flops or profiled."
_WSC_WEIGHTS = "Weights of wsc for input, system and output tokens: a,b,c. Default: 1,2,1."
_SEEDS = "Run each policy with this many seeds. The results are the first seed's; `spread` gives mean and sd over all."
_JITTER = "Relative standard deviation of a step's time, for example 0.05."
_HORIZON = "T of the service difference, in seconds. Default: the last arrival (600 for the VTC traces)."
_GATE = (
    "on or off: put the gate before the engine. Needs --tenants. With --fleet, the planners plan and no-plan always "
    "have it."
)
_ORDER = (
    "The gate's order, or several with commas: bwfq, ratio, ratio+wake, virtual-clock, virtual-clock+cap, sfq or fcfs. "
    "Default: bwfq."
)
_TENANTS = "YAML file of the gate: slots, {weight, rate_per_s, burst, tier} of each tenant, tiers, throttling."
_SHARDS = "Shards of the gate: tenants by hash, slots by what each shard's calls need. Needs --gate on."
_PREEMPTION = (
    "on or off: use the paged engine, which allocates KV blocks as tokens come. With on, tiered:POLICY evicts running "
    "requests for more urgent ones. Default: an engine that admits a request only if it can serve it to its end."
)
_PREMIUM_RESERVE = "Share of the KV blocks that only premium requests may use, for example 0.3. Needs --preemption."
_LEAD_MAX = (
    "Service by which a tenant may be ahead of another of its tier before its requests are evicted for the other's. "
    "Default: no limit. Needs --preemption on."
)
_PREFIX_CACHE = (
    "Tokens of a prefix cache, for a trace with hashes of prompts (FILE.jsonl). Uses the paged engine. Default: none."
)
_LOCALITY = (
    "Run each policy also with locality: within the tenant that it chose, the request with the longest cached prefix "
    "goes first. Needs --prefix-cache."
)
_MAX_LORAS = (
    "LoRA adapters in use at once, for a trace with a column adapter. Uses the paged engine. Default: as the engine's "
    "profile says, or else an adapter is served as its model."
)
_ADAPTER_LOAD_TOKENS = "Input tokens that the load of an adapter is charged as. Default: 512. Needs --max-loras."
_ADAPTER_LEAD = (
    "Service by which a tenant may lead another of its tier that waits for the place of an adapter. Default: 8192. "
    "Needs --max-loras and tiered:POLICY."
)
_LOADED_FIRST = (
    "Run each policy also with loaded adapters first: within the tenant that it chose, a request whose adapter is "
    "loaded goes first. Needs --max-loras."
)
_FLEET = "YAML file of a fleet: workers that load one of several models at a time, and SLO classes. Needs --planner."
_LIVE = (
    "Also play the workload in real time on processes: `headgate serve` with the fleet's workers as modelled engines, "
    "and clients of its API. Needs --fleet."
)
_PLANNER = (
    "Who plans the fleet: fcfs, edf, round-robin, static, static-seen, shepherd, qlm, plan or no-plan. Separate "
    "several with commas. Needs --fleet."
)
_PROCESSES = "Parallel processes. Default: CPU count."
_REPORT = "Write a page with plots to this FILE.html."
_TIMING = "Also print how long the runs take on this machine."


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    trace: Annotated[list[str] | None, Argument(help=_TRACE)] = None
    policy: Annotated[str | None, Option(help=_POLICY)] = None
    engine: Annotated[str | None, Option(help=_ENGINE)] = None
    fit: Annotated[Path | None, Option(help=_FIT)] = None
    profile: Annotated[Path | None, Option(help=_PROFILE)] = None
    columns: Annotated[str, Option(help=_COLUMNS)] = ""
    weights: Annotated[str, Option(help=_WEIGHTS)] = ""
    service: Annotated[str, Option(help=_SERVICE)] = "weighted"
    wsc_weights: Annotated[str, Option(help=_WSC_WEIGHTS)] = ""
    seeds: Annotated[int, Option(help=_SEEDS, min=1, max=10_000)] = 1
    seed: Annotated[int, Option(help="The first seed.")] = 0
    jitter: Annotated[float, Option(help=_JITTER)] = 0.0
    horizon: Annotated[float | None, Option(help=_HORIZON)] = None
    gate: Annotated[str, Option(help=_GATE)] = "off"
    order: Annotated[str | None, Option(help=_ORDER)] = None
    tenants: Annotated[Path | None, Option(help=_TENANTS)] = None
    shards: Annotated[int, Option(help=_SHARDS, min=1, max=SHARDS_MAX)] = 1
    preemption: Annotated[str | None, Option(help=_PREEMPTION)] = None
    premium_reserve: Annotated[float | None, Option(help=_PREMIUM_RESERVE)] = None
    lead_max: Annotated[float | None, Option(help=_LEAD_MAX)] = None
    prefix_cache: Annotated[int | None, Option(help=_PREFIX_CACHE, min=1, max=1_000_000_000)] = None
    locality: Annotated[bool, Option("--locality", help=_LOCALITY)] = False
    max_loras: Annotated[int | None, Option(help=_MAX_LORAS, min=1, max=1_000)] = None
    adapter_load_tokens: Annotated[int | None, Option(help=_ADAPTER_LOAD_TOKENS, min=0, max=1_000_000)] = None
    adapter_lead: Annotated[float | None, Option(help=_ADAPTER_LEAD)] = None
    loaded_first: Annotated[bool, Option("--loaded-first", help=_LOADED_FIRST)] = False
    fleet: Annotated[Path | None, Option(help=_FLEET)] = None
    planner: Annotated[str | None, Option(help=_PLANNER)] = None
    live: Annotated[bool, Option("--live", help=_LIVE)] = False
    processes: Annotated[int | None, Option(help=_PROCESSES, min=1)] = None
    report: Annotated[Path | None, Option(help=_REPORT)] = None
    timing: Annotated[bool, Option("--timing", help=_TIMING)] = False
    json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False


_VTC_WORKLOADS = frozenset({"real", "overload", "overload-multi", "poisson_short_long", "proportional"})
"""The workloads of the VTC artifact. The paper computes their service difference over 600 s, although the last request
arrives a little earlier or later (one of them ends at 360 s)."""
_VTC_HORIZON_S = 600.0
_VTC_LAST_ARRIVAL_S = (300.0, 620.0)
_JITTER_MAX = 1.0


def choose_policy(options: SimulateOptions, default: str) -> str:
    return default if options.policy is None else options.policy


def run_specs(options: SimulateOptions) -> list[RunSpec]:
    """Make all seeds of the first policy, all seeds of the next, and so on; and the same for each order of the gate.

    Raises ConfigurationError, with one sentence, for the first option that is wrong.
    """
    if options.profile is not None:
        raise ConfigurationError("--profile needs --fit LOG.csv")
    policies = policy_names(choose_policy(options, DEFAULT_POLICY), options.wsc_weights, options.service)
    profile = load_profile(DEFAULT_ENGINE if options.engine is None else options.engine)
    check_numbers(options)
    if options.prefix_cache is not None:
        profile = profile.model_copy(update={"prefix_cache_tokens": options.prefix_cache})
    elif options.locality:
        raise ConfigurationError("--locality needs --prefix-cache")
    if options.max_loras is not None:
        profile = profile.model_copy(update={"max_loras": options.max_loras})
    _check_adapters(options, policies)
    gates = _gates(options)
    if options.report is not None:
        check_page(options.report)
        check_installed()
    workload = open_workload(options.trace or [], parse_columns(options.columns))
    first = RunSpec(
        workload,
        policies[0],
        profile,
        service=options.service,
        weights=tenant_weights(options.weights, workload),
        jitter=options.jitter,
        horizon_s=_horizon_s(options, workload),
        timing=options.timing,
        tiers=_tiers(options),
        gate=gates[0],
    )
    with_timeline = options.seed if options.report is not None else None
    return [
        replace(
            first, gate=gate, policy=policy, seed=seed, timeline=seed == with_timeline, locality=locality,
            loaded_first=loaded_first,
        )
        for gate in gates
        for policy in policies
        for locality in ((False, True) if options.locality and _has_an_order(policy) else (False,))
        for loaded_first in ((False, True) if options.loaded_first and _has_an_order(policy) else (False,))
        for seed in range(options.seed, options.seed + options.seeds)
    ]  # fmt: skip


def _check_adapters(options: SimulateOptions, policies: Sequence[str]) -> None:
    given = {
        "--adapter-load-tokens": options.adapter_load_tokens is not None,
        "--adapter-lead": options.adapter_lead is not None,
        "--loaded-first": options.loaded_first,
    }
    for option, is_given in given.items():
        if is_given and options.max_loras is None:
            raise ConfigurationError(f"{option} needs --max-loras")
    if options.adapter_lead is not None and not all(name.startswith("tiered:") for name in policies):
        raise ConfigurationError("--adapter-lead needs --policy tiered:POLICY")


def _has_an_order(policy: str) -> bool:
    """Return whether the policy's requests of a tenant are next in the order of arrival."""
    return not make_policy(policy).locality


def check_numbers(options: SimulateOptions) -> None:
    """Raises ConfigurationError, with one sentence, for the first option that is wrong."""
    if not 0 <= options.jitter <= _JITTER_MAX:
        raise ConfigurationError(f"--jitter must be between 0 and {_JITTER_MAX:g}, not {options.jitter:g}")
    if options.horizon is not None and not 0 < options.horizon < math.inf:
        raise ConfigurationError(f"--horizon must be a positive number of seconds, not {options.horizon:g}")


def check_page(path: Path) -> None:
    """Raises ConfigurationError for a page that cannot be written. Another file than a page is kept: it may be the
    workload."""
    if path.suffix not in (".html", ".htm") and not path.is_dir():
        raise ConfigurationError(f"--report: name an .html file, not {str(path)[:80]!r}")
    check_writable(path, "--report")


def check_writable(path: Path, option: str) -> None:
    if path.is_dir():
        raise ConfigurationError(f"{option}: {path} is a folder")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{option}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{option}: {path} cannot be written")


def _gates(options: SimulateOptions) -> list[GateSpec] | list[None]:
    """Return a gate for each order; or no gate."""
    check_gate(options.gate)
    orders = list(dict.fromkeys(name.strip() for name in (options.order or DEFAULT_ORDER).split(",") if name.strip()))
    for order in orders or [""]:
        check_order(order)
    if options.gate == "on":
        if options.tenants is None:
            raise ConfigurationError("--gate on needs --tenants FILE.yaml, with its slots and its tenants' shares")
        gate = read_gate(options.tenants, order=orders[0], shards=options.shards)
        return [replace(gate, order=order) for order in orders]
    if options.order is not None or options.tenants is not None or options.shards > 1:
        raise ConfigurationError("--order, --tenants and --shards need --gate on")
    return [None]


def check_gate(gate: str) -> None:
    """Raises ConfigurationError unless the gate is on or off."""
    if gate not in ("on", "off"):
        raise ConfigurationError(f"--gate must be on or off, not {gate[:40]!r}")


def check_order(order: str) -> None:
    """Raises ConfigurationError for an unknown order of the gate."""
    if order not in ORDERS:
        raise ConfigurationError(f"unknown order {order[:40]!r}; there are {', '.join(sorted(ORDERS))}")


def _tiers(options: SimulateOptions) -> TierSettings | None:
    if options.preemption not in ("on", "off", None):
        raise ConfigurationError(f"--preemption must be on or off, not {options.preemption[:40]!r}")
    if options.preemption is None and options.premium_reserve is not None:
        raise ConfigurationError("--premium-reserve needs the paged engine: add --preemption on or off")
    if options.preemption != "on" and options.lead_max is not None:
        raise ConfigurationError("--lead-max needs --preemption on")
    if options.preemption is None and options.prefix_cache is None and options.max_loras is None:
        return None
    adapters = {"adapter_load_tokens": options.adapter_load_tokens, "adapter_lead": options.adapter_lead}
    given: dict[str, Any] = {name: value for name, value in adapters.items() if value is not None}
    try:
        return TierSettings(
            preemption=options.preemption == "on",
            premium_reserve=options.premium_reserve or 0.0,
            lead_max=math.inf if options.lead_max is None else options.lead_max,
            **given,
        )
    except ValueError as error:
        option = "--preemption" if options.preemption is not None else "--adapter-lead"
        raise ConfigurationError(f"{option}: {error}") from None


def _horizon_s(options: SimulateOptions, workload: Workload) -> float | None:
    if options.horizon is not None:
        return options.horizon
    shortest_s, longest_s = _VTC_LAST_ARRIVAL_S
    is_vtc = workload.name.partition(".")[0] in _VTC_WORKLOADS and shortest_s <= workload.last_arrival_s <= longest_s
    return _VTC_HORIZON_S if is_vtc else None


def notes_of(options: SimulateOptions, spec: RunSpec) -> list[str]:
    """Return notes about what the user may have overlooked, one sentence each. `spec`: any of the runs."""
    notes = list(spec.workload.notes)
    if options.seeds > 1 and not options.jitter:
        notes.append("Without --jitter, seeds differ only for policies that draw random numbers (vtc-noisy).")
    return notes if spec.gate is None else notes + gate_notes(spec.gate, spec.workload, options.tenants)


def gate_notes(gate: GateSpec, workload: Workload, file: Path | None) -> list[str]:
    """Return notes about tenants and order. `file`: of the tenants; None without one."""
    if file is None:
        return []
    notes = []
    if unnamed := [name for name in workload.tenants if name not in gate.tenants]:
        notes.append(f"Not in {file}, so with weight 1 and without a guarantee: {_some(unnamed)}.")
    if absent := [name for name in gate.tenants if name not in workload.tenants]:
        notes.append(f"In {file} but not in the workload: {_some(absent)}.")
    if gate.order == "ratio" and not any(tenant.share.rate_per_s for tenant in gate.tenants.values()):
        notes.append(
            "The order ratio, as published, dispatches no tenant without credit, even to an idle fleet: give tenants a "
            "rate_per_s."
        )
    return notes


_NAMED_MAX = 5
"""The most names that a message lists."""


def policy_names(text: str, wsc_weights: str, service: str) -> list[str]:
    """Split --policy into names, and check that each policy can be made."""
    names = _with_weights(_split(text), wsc_weights)
    if not names:
        raise ConfigurationError("--policy: name at least one")
    try:
        for name in names:
            make_policy(name, service_function(service))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return names


def _split(text: str) -> list[str]:
    """Split at commas, except those between a policy's own numbers: `wsc:1,1,2` is one name."""
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if names and part and not part[0].isalpha():
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return list(dict.fromkeys(names))


def _with_weights(names: list[str], text: str) -> list[str]:
    """Write --wsc-weights into the name of `wsc`."""
    if not text:
        return names
    if "wsc" not in names:
        raise ConfigurationError("--wsc-weights needs --policy wsc")
    numbers = [_number(part, "--wsc-weights") for part in text.split(",")]
    if len(numbers) != 3 or not any(numbers):
        raise ConfigurationError(f"--wsc-weights: expected three numbers, not all 0 (1,2,1), not {text[:80]!r}")
    return [f"wsc:{','.join(f'{number:g}' for number in numbers)}" if name == "wsc" else name for name in names]


def tenant_weights(text: str, workload: Workload) -> dict[str, float]:
    """Parse TENANT=1,TENANT=2. The last `=` separates: a tenant's name may contain one."""
    weights: dict[str, float] = {}
    known = frozenset(workload.tenants)
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = entry.rpartition("=")
        if not equals or not name:
            raise ConfigurationError(f"--weights: expected TENANT=NUMBER, not {entry[:80]!r}")
        if name not in known:
            raise ConfigurationError(
                f"--weights: the workload has no tenant {name[:80]!r}; it has {_some(workload.tenants)}"
            )
        if name in weights:
            raise ConfigurationError(f"--weights: {name[:80]!r} has two weights: give one")
        weights[name] = _number(value, "--weights", positive=True)
    return weights


def _number(text: str, option: str, *, positive: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 < value < math.inf or (value == 0 and not positive):
        return value
    raise ConfigurationError(f"{option}: expected {'a positive number' if positive else 'a number'}, not {text[:40]!r}")


def _some(names: Sequence[str]) -> str:
    """List the first names, and say how many more there are."""
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
