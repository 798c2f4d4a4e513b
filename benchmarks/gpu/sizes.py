"""The sizes of a run: for one large GPU, and for a CPU. Each size is an argument of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

Range = tuple[int, int]
"""The least and the most, uniform."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The model: `layers` to `context`. The engine: `batch` to `swap_bytes`. The rest by part, in their order.

    `peak`: random_llama.py. `copies_bytes`, `product`: of the card's copies, and the side of its matrices.
    `equal_prompts`: the lengths of the prompts of part 2. A name that ends with `_per_s` is the rate of Poisson
    arrivals. `flood_requests`, `background_requests`: how many are unfinished at any time; of the flood's, many more
    than fit.
    """

    layers: int = 16
    width: int = 4096
    head_width: int = 128
    heads: int = 32
    kv_heads: int = 8
    intermediate: int = 14_336
    vocabulary: int = 32_000
    context: int = 32_768
    peak: float = 4.5

    batch: int = 32
    kv_tokens: int = 131_072
    block_tokens: int = 16
    step_tokens: int = 2048
    swap_bytes: int = 2 * GIB

    copies_bytes: tuple[int, ...] = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB)
    product: int = 8192

    equal_prompts: tuple[int, ...] = (5, 33, 128, 257, 700, 1500, 2600, 5000)
    equal_outputs: int = 48

    run_requests: int = 96
    run_prompt: Range = (64, 512)
    run_output: Range = (64, 128)

    quiet_requests: int = 120
    quiet_per_s: float = 5.0
    quiet_prompt: Range = (128, 384)
    quiet_output: Range = (8, 24)
    flood_requests: int = 128
    flood_prompt: Range = (256, 768)
    flood_output: Range = (32, 96)

    premium_requests: int = 32
    premium_per_s: float = 2.0
    premium_prompt: Range = (128, 384)
    premium_output: Range = (8, 24)
    background_requests: int = 6
    background_prompt: Range = (16_384, 16_384)
    background_output: Range = (32, 96)

    victims: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16_384)
    victim_times: int = 3


LARGE = Sizes()
TINY = Sizes(
    layers=2,
    width=128,
    head_width=32,
    heads=4,
    kv_heads=2,
    intermediate=256,
    vocabulary=0,
    context=2048,
    batch=4,
    kv_tokens=2048,
    step_tokens=256,
    swap_bytes=16 * MIB,
    copies_bytes=(4 * KIB, MIB, 16 * MIB),
    product=512,
    equal_prompts=(1, 5, 17, 33, 64, 100, 257, 400),
    equal_outputs=12,
    run_requests=16,
    run_prompt=(8, 48),
    run_output=(8, 24),
    quiet_requests=20,
    quiet_per_s=20.0,
    quiet_prompt=(8, 24),
    quiet_output=(2, 4),
    flood_requests=16,
    flood_prompt=(16, 48),
    flood_output=(8, 24),
    premium_requests=16,
    premium_per_s=16.0,
    premium_prompt=(8, 24),
    premium_output=(2, 4),
    background_requests=4,
    background_prompt=(384, 384),
    background_output=(8, 24),
    victims=(64, 256, 512),
    victim_times=2,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an argument for each size. Their defaults are LARGE's or TINY's."""
    group = parser.add_argument_group("sizes", "defaults: benchmarks/gpu/sizes.py")
    for field in fields(Sizes):
        many = isinstance(field.default, tuple)
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(_first(field.default)),
            nargs=("+" if str(field.type).startswith("tuple") else 2) if many else None,
            metavar="N",
            help=argparse.SUPPRESS,
        )


def sizes_of(options: argparse.Namespace, base: Sizes) -> Sizes:
    """Return `base` with the sizes that the command line names."""
    given: dict[str, Any] = {}
    for field in fields(Sizes):
        if (value := getattr(options, field.name)) is not None:
            given[field.name] = tuple(value) if isinstance(value, Sequence) else value
    return replace(base, **given)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value
