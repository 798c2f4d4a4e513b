"""`headgate simulate --fit LOG.csv`: an engine profile from the log of a server, and its residuals.

Without --json, the result is a table of the log's seconds, the simulation's, and the errors of single requests.
`decoding alone`: from first token to end, in the batch that the log had, so without the errors of admission.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from dispatcher.model.errors import ConfigurationError
from headgate.cli.simulate_options import SimulateOptions, check_writable, choose_policy, policy_names
from headgate.cli.simulate_tables import open_console
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.fit.fitting import FRACTIONS, EngineFit, Residuals, fit_engine
from headgate.simulator.fit.log import read_log
from headgate.workloads.columns import parse_columns

_APPLY = frozenset({"fit", "profile", "columns", "engine", "policy", "json"})
_ORDER = "fcfs"
"""The order of most servers."""


def fit_and_print(options: SimulateOptions, path: Path) -> None:
    """Fit, print, and write the profile. Raises ConfigurationError, with one sentence, for what is wrong."""
    for field in fields(options):
        if field.name not in _APPLY and getattr(options, field.name) != field.default:
            name = "a workload" if field.name == "trace" else f"--{field.name.replace('_', '-')}"
            raise ConfigurationError(f"{name} does not apply with --fit")
    columns = parse_columns(options.columns)
    policies = policy_names(choose_policy(options, _ORDER), "", "weighted")
    if len(policies) > 1:
        raise ConfigurationError("--fit takes one policy: the order in which the server admitted")
    rules = None if options.engine is None else load_profile(options.engine)
    if options.profile is not None:
        if options.profile.suffix not in (".yaml", ".yml"):
            raise ConfigurationError(f"--profile: name a .yaml file, not {str(options.profile)[:80]!r}")
        check_writable(options.profile, "--profile")
    log = read_log(path, columns)
    fit = fit_engine(log, (options.profile or path).stem, policies[0], rules)
    for note in fit.notes:
        sys.stderr.write(f"note: {note}\n")
    if options.profile is not None:
        options.profile.write_text(profile_text(fit.profile), encoding="utf-8")
    if options.json:
        sys.stdout.write(json.dumps(_as_json(fit), allow_nan=False) + "\n")
    else:
        _print_fit(fit, options.profile)


def profile_text(profile: EngineProfile) -> str:
    """Return the profile as a file for --engine."""
    return yaml.safe_dump(profile.model_dump(exclude_defaults=True), sort_keys=False, width=100)


def _as_json(fit: EngineFit) -> dict[str, Any]:
    return {
        "profile": fit.profile.model_dump(exclude_defaults=True),
        "first_tokens": asdict(fit.first_tokens),
        "whole_answers": asdict(fit.whole_answers),
        "decoding_errors": fit.decoding,
        "refused": fit.refused,
        "notes": list(fit.notes),
    }


def _print_fit(fit: EngineFit, written: Path | None) -> None:
    console = open_console()
    profile, fitted_on = fit.profile, fit.profile.fitted_on
    assert fitted_on is not None  # noqa: S101
    console.print(
        f"[bold]{escape(fitted_on.log)}[/]: {fitted_on.requests:,} requests in {fitted_on.seconds:,.0f} s, "
        f"{fitted_on.unserved:,} more not served; up to {fitted_on.batch_max} at once, prompts of "
        f"{fitted_on.input_tokens_min} to {fitted_on.input_tokens_max} tokens"
    )
    decode_ms, request_ms = 1000 * profile.decode_base_s, 1000 * profile.decode_per_request_s
    held_ms = 1e6 * profile.decode_per_kv_token_s
    prefill_ms, token_ms = 1000 * profile.prefill_base_s, 1000 * profile.prefill_per_token_s
    console.print(
        f"decode step = {decode_ms:.3f} ms + {request_ms:.4f} ms a request + {held_ms:.4f} ms a thousand KV tokens"
    )
    console.print(f"prefill = {prefill_ms:.3f} ms + {token_ms:.5f} ms a prompt token")
    console.print(f"admission (assumed): {escape(fitted_on.admission)}; order: {escape(fitted_on.policy)}")
    console.print(_residuals(fit))
    if fit.refused:
        console.print(f"{fit.refused:,} requests of the log are refused in the simulation, and are in no figure.")
    console.print(f"written: {written}" if written else "Not written: add --profile FILE.yaml, for --engine.")


def _residuals(fit: EngineFit) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("seconds", no_wrap=True)
    for part in ("log", "simulated", "error"):
        for number, name in enumerate(FRACTIONS):
            table.add_column(f"{part} {name.upper()}" if number == 0 else name.upper(), justify="right")
    table.add_row("first tokens", *_cells(fit.first_tokens))
    table.add_row("whole answers", *_cells(fit.whole_answers))
    table.add_row("decoding alone", *["–"] * 6, *(f"{value:.3f}" for value in fit.decoding.values()))
    return table


def _cells(residuals: Residuals) -> list[str]:
    parts = (residuals.logged, residuals.simulated, residuals.errors)
    return [f"{value:.3f}" for part in parts for value in part.values()]
