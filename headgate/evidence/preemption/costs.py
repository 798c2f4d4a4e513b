"""Section 1.2 of the practitioner's design: what swap and recompute cost, and where they cross."""

from __future__ import annotations

from gpu_worker.policies.preemption import Calibration
from headgate.evidence.document import Check, Section, Setting, Table, experiment
from headgate.evidence.preemption import scene

SOURCE_MS = {
    (512, 10): (52, 52),
    (512, 100): (62, 61),
    (512, 500): (103, 101),
    (2048, 50): (214, 210),
    (8192, 200): (856, 840),
    (32768, 100): (3280, 3210),
}
"""The source prints swap and recompute by (prompt, generated) tokens, for Llama 3 70B on an A100."""
SHEET_KV_BYTES = 80 * 8 * 128 * 2 * 2
"""Layers x KV heads x head size x keys and values x bytes of a half."""
SHEET_LINK = 25e9
"""PCIe 4.0 x16, bytes a second in practice."""
SHEET_TOKEN_S = 2 * 70.6e9 / (312e12 * 0.5)
"""FLOP of a prompt token over half of the data sheet's FLOP/s of an A100."""
SHEET_TOKEN2_S = 2 * 80 * 64 * 128 / (312e12 * 0.5)
"""The same for attention: 4 FLOP for each layer, query head, channel and pair of tokens; half of the pairs are
masked."""
_CODE_KV_BYTES, _CODE_LINK, _CODE_PREFILL_PER_S = 80 * 512, 32e9 / 8, 10_000
"""The constants of the source's own code: bytes of KV a token, bytes a second of the link, prompt tokens a second."""
_CROSSOVER_TOKENS = 16_000
"""Where swap and recompute cross, by the source's text."""
_LONGEST = 131_072


def sheet(link_bytes_per_s: float) -> Calibration:
    """Return the calibration of eight A100. A prompt shares its steps with decodes, so it has no base cost."""
    token_s, token2_s = SHEET_TOKEN_S / 8, SHEET_TOKEN2_S / 8
    return Calibration(SHEET_KV_BYTES, link_bytes_per_s, link_bytes_per_s, 1e-3, 0.0, token_s, token2_s, 0.02)


SHEETS = {
    "four links": sheet(4 * SHEET_LINK),
    "one link": sheet(SHEET_LINK),
    "one link, bits for bytes": sheet(SHEET_LINK / 8),
}


def by_data_sheet() -> list[dict[str, float]]:
    """Return rows in milliseconds. "its code": by the source's own code, with 4 GB/s and 40,960 bytes a token."""
    rows = []
    for (prompt, generated), (swap, again) in SOURCE_MS.items():
        tokens = prompt + generated
        one: dict[str, float] = {"tokens": tokens, "its table, swap": swap, "its table, recompute": again}
        one["its code, swap"] = 1e3 * 2 * tokens * _CODE_KV_BYTES / _CODE_LINK
        one["its code, recompute"] = 1e3 * tokens / _CODE_PREFILL_PER_S
        for name, known in SHEETS.items():
            one[name] = 1e3 * (known.swap_out_s(tokens) + known.swap_in_s(tokens))
        one["recompute"] = 1e3 * SHEETS["one link"].prefill_s(tokens)
        rows.append(one)
    return rows


@experiment(
    "preemption-costs",
    "What a preemption costs, and where swap and recompute cross",
    f"{scene.SOURCE}, section 1.2: the table of strategy costs and the crossover",
)
def preemption_costs(setting: Setting) -> Section:
    del setting
    rows = by_data_sheet()
    return Section(
        text=(
            "Llama 3 70B, milliseconds. Ours are the costs of `gpu_worker/policies/preemption.py` with rates of data "
            "sheets: 327,680 bytes of KV a token, eight A100, 25 GB/s a link, prefill at half of 8 x 312 TFLOP/s. "
            "Nothing of this was measured on a GPU; benchmarks/preemption_costs.py measures a small engine.",
            "The source gives the link as 32 and divides by eight, as if that were Gbit/s: a swap is eight times too "
            "dear. It gives 512 bytes of KV a token and layer, where the model has 4,096: the two errors cancel.",
        ),
        tables=[Table("Costs (ms)", tuple(rows[0]), [tuple(row.values()) for row in rows])],
        checks=[*_source_checks(rows), *_our_checks(rows)],
    )


def _source_checks(rows: list[dict[str, float]]) -> list[Check]:
    ratios = [row["its table, swap"] / row["its code, swap"] for row in rows]
    code = [row["its code, swap"] / row["its code, recompute"] for row in rows]
    return [
        Check(
            "the source's swap column follows from its own code within 10%",
            all(abs(ratio - 1) <= 0.1 for ratio in ratios),
            f"{min(ratios):.1f} to {max(ratios):.1f} times as much",
            "the table has about five times what the code computes; its text does not say how the table was made",
        ),
        Check(
            f"its two costs cross near {_CROSSOVER_TOKENS:,} tokens",
            any(ratio < 1 for ratio in code) and any(ratio > 1 for ratio in code),
            f"swap is {min(code):.3f} to {max(code):.3f} of recompute at every length",
            "both are proportional to the length, so they cannot cross",
        ),
    ]


def _our_checks(rows: list[dict[str, float]]) -> list[Check]:
    four, one, wrong = (SHEETS[name].crossover_tokens(4096) for name in SHEETS)
    late = SHEETS["one link, bits for bytes"].crossover_tokens(_LONGEST)
    growth = (rows[-1]["recompute"] / rows[0]["recompute"]) / (rows[-1]["tokens"] / rows[0]["tokens"])
    return [
        Check(
            "by data sheets a swap is cheaper from at most 32 tokens on, with four links and with one",
            four is not None and one is not None and max(four, one) <= 32,
            f"{four} and {one} tokens",
        ),
        Check(
            "with bits for bytes it is not cheaper up to 4,096 tokens, but from some length up to 131,072 on",
            wrong is None and late is not None,
            f"from {late} tokens on",
        ),
        Check(
            "a recompute costs more per token of a long request: attention is quadratic",
            growth > 1.05,
            f"{growth:.2f} times as much a token at {rows[-1]['tokens']:,} as at {rows[0]['tokens']:,}",
        ),
    ]
