"""YAML workloads: read as written, and refused in one sentence with the place."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.errors import ConfigurationError
from dispatcher.settings.yaml_file import BYTES_MAX
from headgate.workloads.arrivals import Arrival
from headgate.workloads.described import PlannedWorkload
from headgate.workloads.sources import Workload, open_workload

EXAMPLES = Path(__file__).parents[3] / "examples" / "workloads"
TENANT = """\
duration_s: 60
tenants:
  a:
    arrivals: {kind: uniform, rate_per_min: 60}
    input: {kind: fixed, tokens: 8}
    output: {kind: fixed, tokens: 4}
"""


def opened(folder: Path, text: str | bytes) -> Workload:
    path = folder / "w.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_workload([str(path)])


def times(folder: Path, arrivals: str) -> list[float]:
    """When the requests of this process come, in 60 s."""
    text = TENANT.replace("{kind: uniform, rate_per_min: 60}", arrivals)
    return [arrival.arrival_s for arrival in opened(folder, text)]


def test_one_tenant_as_written(tmp_path: Path) -> None:
    more = "    weight: 3\n    tier: premium\n    slo_ttft_ms: 500\n    app: chat\n    model: m\n    system_tokens: 5\n"
    workload = opened(tmp_path, TENANT + more)
    assert (workload.name, workload.tenants, workload.requests, workload.last_arrival_s) == ("w", ("a",), 60, 59.0)
    assert (workload.weights, workload.tiers, workload.notes) == ({"a": 3.0}, {"a": "premium"}, ())
    first, *_ = workload
    assert first == Arrival(0.0, "a", 8, 4, app="chat", model="m", tier="premium", slo_ttft_ms=500.0, system_tokens=5)


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ("{kind: uniform, rate_per_min: 5}", [0.0, 12.0, 24.0, 36.0, 48.0]),
        ("{kind: uniform, rate_per_s: 0.05, phase: 0.25}", [5.0, 25.0, 45.0]),
        ("{kind: uniform, rate_per_min: 6, start_s: 25, end_s: 45}", [25.0, 35.0]),
        ("{kind: on_off, rate_per_min: 12, on_s: 10, off_s: 20}", [0.0, 5.0, 30.0, 35.0]),
        ("{kind: on_off, rate_per_min: 12, on_s: 10, off_s: 20, start_s: 3}", [3.0, 8.0, 33.0, 38.0]),
        # 0.1 t + t^2 / 600 reaches 0, 1, 2, ... 11
        (
            "{kind: ramp, from_per_min: 6, to_per_min: 18, spacing: uniform}",
            [30 * ((1 + n * 2 / 3) ** 0.5 - 1) for n in range(12)],
        ),
        ("{kind: ramp, from_per_s: 0, to_per_s: 0.2}", [(600 * n) ** 0.5 for n in range(6)]),
        ("{kind: ramp, from_per_s: 0.2, to_per_s: 0}", [60 - (3600 - 600 * n) ** 0.5 for n in range(6)]),
        (
            "{kind: bursts, rate_per_min: 3, spacing: uniform, burst: {probability: 1, size: 2}}",
            [0.0, 0.0, 20.0, 20.0, 40.0, 40.0],
        ),
        (
            "[{kind: uniform, rate_per_min: 6, end_s: 20}, {kind: uniform, rate_per_min: 3, start_s: 10}]",
            [0.0, 10.0, 10.0, 30.0, 50.0],
        ),
    ],
)
def test_processes_without_chance(tmp_path: Path, arrivals: str, expected: list[float]) -> None:
    assert times(tmp_path, arrivals) == pytest.approx(expected, abs=1e-6)


def test_the_three_phases_of_vtcs_figure_10(tmp_path: Path) -> None:
    text = """\
duration_s: 900
tenants:
  client-1:
    arrivals:
      - {kind: on_off, rate_per_min: 30, on_s: 60, off_s: 60, end_s: 300}
      - {kind: uniform, rate_per_min: 60, start_s: 300, end_s: 600}
      - {kind: uniform, rate_per_min: 30, start_s: 600}
    input: {kind: fixed, tokens: 256}
    output: {kind: fixed, tokens: 256}
"""
    minutes = [0] * 15
    for arrival in opened(tmp_path, text):
        minutes[int(arrival.arrival_s // 60)] += 1
    assert minutes == [30, 0, 30, 0, 30, 60, 60, 60, 60, 60, 30, 30, 30, 30, 30]


def test_lengths_of_a_trace_stay_together(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,tenant,input_tokens,output_tokens\n0,x,10,1\n1,x,20,2\n2,x,0,3\n")
    text = TENANT.replace("{kind: fixed, tokens: 8}", "{kind: empirical, file: t.csv}")
    both = text.replace("{kind: fixed, tokens: 4}", "{kind: empirical, file: t.csv}")
    assert {(a.input_tokens, a.output_tokens) for a in opened(tmp_path, both)} == {(10, 1), (20, 2), (1, 3)}
    crossed = text.replace("{kind: fixed, tokens: 4}", "{kind: empirical, file: t.csv, column: input_tokens}")
    assert {(a.input_tokens, a.output_tokens) for a in opened(tmp_path, crossed)} == {(10, 10), (20, 20), (1, 1)}


def test_interactions_have_stages_in_order(tmp_path: Path) -> None:
    calls = "{calls: [{calls: 1, weight: 1}, {calls: [2, 3], weight: 1}], think_s: 2.5}"
    workload = opened(tmp_path, TENANT + f"    interactions: {calls}\n")
    by_name: dict[str | None, list[Arrival]] = {}
    for arrival in workload:
        by_name.setdefault(arrival.interaction, []).append(arrival)
    assert len(by_name) == 60
    assert {len(stages) for stages in by_name.values()} == {1, 2, 3}
    for stages in by_name.values():
        assert [stage.stage for stage in stages] == list(range(len(stages)))
        assert [stage.arrival_s - stages[0].arrival_s for stage in stages] == [2.5 * n for n in range(len(stages))]


def test_at_most_so_many_requests(tmp_path: Path) -> None:
    assert opened(tmp_path, TENANT + "    requests: 7\n").requests == 7
    whole = opened(tmp_path, TENANT + "    requests: 7\n    interactions: {calls: 3}\n")
    assert whole.requests == 9
    assert len(list(whole)) == 9


def test_scalars_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = TENANT.replace("  a:", "  no:").replace("rate_per_min: 60", "rate_per_min: 06e1")
    workload = opened(tmp_path, text)
    assert (workload.tenants, workload.requests) == (("no",), 60)
    assert opened(tmp_path, TENANT.replace("  a:", "  7:")).tenants == ("7",)


def test_an_alias_stands_for_a_value(tmp_path: Path) -> None:
    text = TENANT.replace("input: {", "input: &same {").replace("output: {kind: fixed, tokens: 4}", "output: *same")
    assert {(a.input_tokens, a.output_tokens) for a in opened(tmp_path, text)} == {(8, 8)}


BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
POISSON = "{kind: poisson, rate_per_min: 60}"


def changed(old: str, new: str) -> str:
    assert old in TENANT
    return TENANT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", ": is empty"),
        ("# only words\n", ": is empty"),
        ("a: [1, 2\n", ", line 2, column 1: not YAML (expected ',' or ']', but got '<stream end>')"),
        ("a: b: c\n", ", line 1, column 5: not YAML (mapping values are not allowed here)"),
        ("a: *absent\n", ", line 1, column 4: not YAML (found undefined alias 'absent')"),
        ("a: 1\n---\nb: 2\n", ", line 2, column 1: not YAML (but found another document)"),
        ("a: \x07\n", ": not YAML (the character"),
        (b"a: 1\nb: \xff\n", ", line 2: not UTF-8 text"),
        ("[" * 100_000, ": nested more than 20 deep"),
        ("a: " * 1 + "[" * 30 + "]" * 30, ", line 1, column 24: nested more than 20 deep"),
        ("a: &a [*a]\n", "nested more than 20 deep"),
        (BOMB, ": more than 100000 values, counting what aliases repeat"),
        (" " * (BYTES_MAX + 1), f": more than {BYTES_MAX} bytes"),
        ("duration_s: 60\nduration_s: 60\n", ", line 2, column 1: the key 'duration_s' appears twice"),
        ("a: !!python/object/apply:os.system [x]\n", ", line 1, column 4: the tag"),
        ("a: !mine 5\n", ", line 1, column 4: the tag '!mine' is not supported"),
        ("a: &a {x: 1}\nb:\n  <<: *a\n", ", line 3, column 3: merge keys"),
        ("? [1, 2]\n: 3\n", ", line 1, column 3: a key should be a word"),
        ("a: " + "9" * 5000, ", line 1, column 4: a number of more than 300 characters"),
        ("- 1\n", ", line 1, column 1: should be a mapping of duration_s, seed, tenants"),
        ("just words\n", ", line 1, column 1: should be a mapping of duration_s, seed, tenants, not 'just words'"),
        (changed("duration_s: 60\n", ""), ", line 1, column 1, key 'duration_s': is missing"),
        (changed("60\n", "soon\n"), ", line 1, column 1, key 'duration_s': should be a valid number, not 'soon'"),
        (changed("60\n", "0\n"), ", line 1, column 1, key 'duration_s': should be greater than 0, not '0'"),
        (changed("60\n", ".inf\n"), ", line 1, column 1, key 'duration_s': should be"),
        (changed("60\n", "true\n"), ", line 1, column 1, key 'duration_s': should be a valid number, not 'True'"),
        (changed("60\n", "'60'\n"), ", line 1, column 1, key 'duration_s': should be a valid number, not '60'"),
        (changed("60\n", "1" + "0" * 299 + "\n"), ", line 1, column 1, key 'duration_s'"),
        (changed("60\n", "60\nseed: 1.5\n"), ", line 2, column 1, key 'seed': should be a valid integer, not '1.5'"),
        (changed("60\n", f"60\nseed: {2**64}\n"), ", line 2, column 1, key 'seed'"),
        ("duration_s: 60\ntenants: {}\n", ", line 2, column 1, key 'tenants': "),
        ("duration_s: 60\ntenants:\n", ", line 2, column 1, key 'tenants': should be a mapping"),
        ("duration_s: 60\ntenants: {a: }\n", ", line 2, column 11, key 'tenants.a': should be a mapping of arrivals"),
        (changed("  a:", f"  {'x' * 201}:"), ", line 3, column 3, key 'tenants.xxx"),
        (changed("  a:", "  '':"), ", line 3, column 3, key 'tenants.': the tenant's name is empty"),
        (
            TENANT + "    wieght: 2\n",
            ", line 7, column 5, key 'tenants.a.wieght': is not known here (did you mean 'weight'?)",
        ),
        (
            TENANT + "    zzz: 2\n",
            ", line 7, column 5, key 'tenants.a.zzz': is not known here; there are arrivals, input",
        ),
        (TENANT + "    weight: -1\n", ", line 7, column 5, key 'tenants.a.weight': should be greater than 0, not '-1'"),
        (TENANT + "    weight: .nan\n", ", line 7, column 5, key 'tenants.a.weight'"),
        (
            TENANT + "    tier: royal\n",
            ", line 7, column 5, key 'tenants.a.tier': should be one of premium, standard, background, not 'royal'",
        ),
        (TENANT + "    tier: [1]\n", ", line 7, column 5, key 'tenants.a.tier': should be one of premium, standard"),
        (
            TENANT + "    requests: 0\n",
            ", line 7, column 5, key 'tenants.a.requests': should be greater than or equal to 1, not '0'",
        ),
        (TENANT + "    system_tokens: 9\n", ", line 7, column 5, key 'tenants.a.system_tokens': 9 is more than the 8"),
        (
            changed("arrivals: {kind: uniform, rate_per_min: 60}", "app: x"),
            ", line 3, column 3, key 'tenants.a.arrivals': is missing",
        ),
        (
            changed("uniform", "sometimes"),
            ", line 4, column 16, key 'tenants.a.arrivals.kind': should be one of 'uniform', 'poisson'",
        ),
        (changed("kind: uniform, ", ""), ", line 4, column 5, key 'tenants.a.arrivals.kind': is missing"),
        (
            changed("{kind: uniform, rate_per_min: 60}", "often"),
            ", line 4, column 5, key 'tenants.a.arrivals': should be a mapping with 'kind', not 'often'",
        ),
        (
            changed("{kind: uniform, rate_per_min: 60}", "[]"),
            ", line 4, column 5, key 'tenants.a.arrivals': should be one process or a list",
        ),
        (
            changed("rate_per_min: 60", "rate_per_min: 0"),
            ", line 4, column 31, key 'tenants.a.arrivals.rate_per_min': should be greater than 0, not '0'",
        ),
        (
            changed(", rate_per_min: 60", ""),
            ", line 4, column 5, key 'tenants.a.arrivals': needs either 'rate_per_s' or 'rate_per_min'",
        ),
        (changed("60}", "60, rate_per_s: 1}"), ", line 4, column 5, key 'tenants.a.arrivals': needs either"),
        (
            changed("60}", "60, cv: 1}"),
            ", line 4, column 49, key 'tenants.a.arrivals.cv': is not known here; there are kind, phase",
        ),
        (changed("uniform", "gamma"), ", line 4, column 5, key 'tenants.a.arrivals.cv': is missing"),
        (changed("uniform", "on_off"), "key 'tenants.a.arrivals.on_s': is missing"),
        (
            changed("{kind: uniform", "{kind: on_off, on_s: 1, off_s: 1, spacing: gamma"),
            "key 'tenants.a.arrivals.cv': is missing, which spacing",
        ),
        (
            changed("{kind: uniform", "{kind: on_off, on_s: 1, off_s: 1, cv: 2"),
            "key 'tenants.a.arrivals.cv': is for spacing 'gamma'",
        ),
        (
            changed("uniform, rate_per_min: 60", "ramp, from_per_s: 1, to_per_min: 1"),
            "key 'tenants.a.arrivals': needs 'from_per_s' and 'to_per_s'",
        ),
        (
            changed("uniform, rate_per_min: 60", "ramp, from_per_s: 0, to_per_s: 0"),
            "key 'tenants.a.arrivals': should ramp",
        ),
        (
            changed("60}", "60, end_s: 61}"),
            ", line 4, column 49, key 'tenants.a.arrivals.end_s': 61 is after the duration_s of 60",
        ),
        (changed("60}", "60, start_s: 60}"), "key 'tenants.a.arrivals.start_s': 60 should be before 60, the end"),
        (
            changed("{kind: uniform, rate_per_min: 60}", f"[{POISSON}, {{kind: poisson}}]"),
            ", line 4, column 51, key 'tenants.a.arrivals[1]': needs either",
        ),
        (changed("uniform", "bursts"), "key 'tenants.a.arrivals.burst': is missing"),
        (
            changed("uniform", "bursts, burst: {probability: 2, size: 3}"),
            "key 'tenants.a.arrivals.burst.probability': should be less than or equal to 1, not '2'",
        ),
        (
            changed("uniform", "bursts, burst: {probability: 1, size: [3, 2]}"),
            "key 'tenants.a.arrivals.burst.size': should be a whole number, or [lowest, highest]",
        ),
        (
            changed("uniform", "bursts, burst: {probability: 1, size: [0, 2]}"),
            "key 'tenants.a.arrivals.burst.size[0]': should be",
        ),
        (
            changed("tokens: 8", "tokens: 1.5"),
            ", line 5, column 26, key 'tenants.a.input.tokens': should be a valid integer, not '1.5'",
        ),
        (changed("tokens: 8", "tokens: 0"), ", line 5, column 26, key 'tenants.a.input.tokens': should be"),
        (
            changed("fixed, tokens: 8", "uniform, low: 5, high: 4"),
            ", line 5, column 36, key 'tenants.a.input.high': 4 should be at least low, 5",
        ),
        (
            changed("fixed, tokens: 8", "lognormal, median: 5, sigma: 1, min: 9, max: 4"),
            "key 'tenants.a.input.max': 4 should be at least min, 9",
        ),
        (changed("fixed, tokens: 8", "lognormal, median: 5"), "key 'tenants.a.input.sigma': is missing"),
        (changed("fixed, tokens: 8", "empirical, file: none.csv"), "none.csv: No such file"),
        (changed("fixed, tokens: 8", "empirical, file: w.yaml"), "w.yaml, line 1: no column for arrival among"),
        (
            changed("fixed, tokens: 8", 'empirical, file: "a\\0"'),
            "key 'tenants.a.input.file': should be the name of a file",
        ),
        (
            changed("fixed, tokens: 8", "empirical, file: x, column: tenant"),
            "key 'tenants.a.input.column': should be 'input_tokens'",
        ),
        (TENANT + "    interactions: {calls: 0}\n", "key 'tenants.a.interactions.calls"),
        (
            TENANT + "    interactions: {calls: many}\n",
            "key 'tenants.a.interactions.calls': should be a whole number, or [lowest, highest], not 'many'",
        ),
        (
            TENANT + "    interactions: {calls: [{calls: 1}]}\n",
            "key 'tenants.a.interactions.calls[0].weight': is missing",
        ),
        (
            TENANT + "    interactions: {calls: 2, think_s: -1}\n",
            "key 'tenants.a.interactions.think_s': should be",
        ),
        (TENANT + "    interactions: {think_s: 1}\n", "key 'tenants.a.interactions.calls': is missing"),
        (
            changed("60}", "1e6}").replace("duration_s: 60", "duration_s: 6e5"),
            ", line 2, column 1, key 'tenants': about 1e+10 requests in all",
        ),
        (
            changed("uniform, rate_per_min: 60", "poisson, rate_per_min: 1e-9"),
            "makes no request within 60 s (seed 0)",
        ),
        (changed("60}", "-1}") + "    weight: 0\n", ", line 4, column 31, key 'tenants.a.arrivals.rate_per_min'"),
    ],
)
def test_an_error_names_its_place(tmp_path: Path, text: str | bytes, what: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        opened(tmp_path, text)
    message = str(caught.value)
    assert what in message
    assert message.startswith((f"{tmp_path}/w.yaml", "w: "))
    assert "\n" not in message
    assert len(message) < 600


WORD = st.sampled_from(
    [
        *("duration_s", "seed", "tenants", "a", "arrivals", "input", "output", "kind", "uniform", "fixed", "tokens"),
        *("rate_per_s", "interactions", "calls", "weight", "<<:", "&a", "*a", "!!int", "-", "?", ":", ",", "{", "}"),
        *("[", "]", "1", "0", "-1", ".nan", "1e9", "null", "~", "true", "''", "\n", "#", "|", ">", "%", "@", "\t"),
    ]
)


@given(st.lists(WORD, max_size=30).map(" ".join) | st.binary(max_size=200), st.integers(0, len(TENANT)))
def test_whatever_is_in_a_file_it_is_read_or_refused(noise: str | bytes, at: int) -> None:
    noise = noise if isinstance(noise, bytes) else noise.encode()
    with tempfile.TemporaryDirectory() as folder:
        for text in (noise, TENANT[:at].encode() + noise + TENANT[at:].encode()):
            with contextlib.suppress(ConfigurationError):
                assert opened(Path(folder), text).requests


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples(path: Path) -> None:
    workload = open_workload([str(path)])
    assert isinstance(workload, PlannedWorkload)
    assert len(list(workload)) == workload.requests > 100


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} >= {"flood", "bursts", "interactions"}
