"""Part 2: the tokens of requests that run together equal those of the model's `generate`, which runs them one by one.

Both are greedy. In bfloat16 the shape of a batch changes the last digits of a logit, so that one of two nearly equal
logits can win in one shape and the other in the other. A different token is such a rounding tie if, in the reference's
own run, its logit is below the highest by at most the rounding. The rounding is the larger of two figures: twice the
distance of neighbouring numbers of the format at the highest logit, and the largest difference between the logits of
`generate` and those of one pass over the same tokens, among the TOP most likely tokens of each place. Any other
difference is a failure. After a different token the two runs have different contexts, so only the first one counts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import floor, inf, log2
from random import Random
from typing import Any

import torch

from benchmarks.gpu.bench import Bench, Planned, first_token_s, run_engine
from benchmarks.gpu.run import Report, WrongResult

TOP = 8


@dataclass(frozen=True, slots=True)
class Comparison:
    """One request. `position`: of the first different token; None if all are equal. `below`: the logit of the engine's
    token there, below the reference's highest. `spacing`: of the numbers there. `noise`: the largest difference of two
    ways to compute the same logits."""

    prompt: int
    tokens: int
    position: int | None = None
    below: float = 0.0
    spacing: float = 0.0
    noise: float = 0.0

    @property
    def rounding(self) -> float:
        return max(2 * self.spacing, self.noise)

    @property
    def verdict(self) -> str:
        if self.position is None:
            return "equal"
        return "rounding tie" if self.below <= self.rounding else "different"


async def compare_tokens(bench: Bench, report: Report) -> None:
    random = Random(bench.seed)
    sizes = bench.sizes
    planned = [
        Planned(f"equal-{length}", bench.prompt(random, length), sizes.equal_outputs) for length in sizes.equal_prompts
    ]
    outputs = await run_together(bench, planned)
    report.say(f"{'prompt':>7} {'tokens':>7} {'first difference':>17} {'below by':>9} {'rounding':>9}  verdict")
    found: list[Comparison] = []
    for each in planned:
        await asyncio.sleep(0)  # the part's time can end here
        found.append(compare_with_reference(bench, each, outputs[each.name]))
        report.say(comparison_line(found[-1]))
    report.record("requests", [{**asdict(each), "verdict": each.verdict} for each in found])
    equal, ties = (sum(each.verdict == verdict for each in found) for verdict in ("equal", "rounding tie"))
    repeated, varied = count_followers(outputs.values())
    report.record("equal", equal)
    report.record("rounding_ties", ties)
    report.record("followers", {"repeated": repeated, "varied": varied})
    report.say(f"{equal} of {len(found)} are equal; {ties} differ by a rounding tie of {bench.dtype}")
    report.say(f"{varied} of the {repeated} tokens that occur again have different followers: the context decides")
    if equal + ties < len(found):
        raise WrongResult(f"{len(found) - equal - ties} of {len(found)} requests have different tokens")


async def run_together(bench: Bench, planned: list[Planned]) -> dict[str, list[int]]:
    """Return the engine's tokens of each request. All requests are sent before the first step."""
    tokens: dict[str, list[int]] = {}
    async with run_engine(bench, "fcfs", bench.shape) as engine:
        router: Any = engine._router
        deliver = router.deliver_batch

        def keep(outputs: list[Any]) -> None:
            tokens.update((output.request_id, list(output.generated_tokens)) for output in outputs)
            deliver(outputs)

        router.deliver_batch = keep
        clock = asyncio.get_running_loop().time
        await asyncio.gather(*(first_token_s(engine, each.request("equal"), clock) for each in planned))
    return tokens


def compare_with_reference(bench: Bench, planned: Planned, tokens: list[int]) -> Comparison:
    """Generate the reference, and compare."""
    prompt = torch.tensor([planned.tokens], device=bench.device)
    with torch.inference_mode():
        reference = bench.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=planned.output,
            output_logits=True,
            return_dict_in_generate=True,
        )
        right = reference.sequences[0, len(planned.tokens) :].tolist()
        length = len(right)
        if tokens == right:
            return Comparison(len(planned.tokens), length)
        logits = torch.cat(reference.logits).float()
        whole = bench.model(reference.sequences[:, :-1], logits_to_keep=length).logits[0].float()
    position = first_difference(tokens, right)
    likely = logits.topk(TOP).indices
    noise = (logits.gather(1, likely) - whole.gather(1, likely)).abs().max().item()
    highest = logits[position].max().item() if position < length else 0.0
    both = position < min(len(tokens), length)
    below = highest - logits[position, tokens[position]].item() if both else inf
    return Comparison(len(planned.tokens), length, position, below, spacing(highest, bench.dtype), noise)


def first_difference(one: list[int], other: list[int]) -> int:
    """Return the first position at which two different lists differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def spacing(number: float, dtype: torch.dtype) -> float:
    """Return the distance of neighbouring numbers of a format at `number`."""
    return float(torch.finfo(dtype).eps) * 2.0 ** (floor(log2(abs(number))) if number else 0)


def count_followers(outputs: Any) -> tuple[int, int]:
    """Return how many tokens occur again with a follower, and how many of these have different followers."""
    followers: dict[int, list[int]] = defaultdict(list)
    for tokens in outputs:
        for token, follower in pairwise(tokens):
            followers[token].append(follower)
    repeated = [seen for seen in followers.values() if len(seen) > 1]
    return len(repeated), sum(len(set(seen)) > 1 for seen in repeated)


def comparison_line(found: Comparison) -> str:
    where = "-" if found.position is None else str(found.position)
    return (
        f"{found.prompt:>7} {found.tokens:>7} {where:>17} {found.below:>9.4f} {found.rounding:>9.4f}  {found.verdict}"
    )
