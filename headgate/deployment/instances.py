"""EC2's GPU instance types: what a worker can use of each. As of November 2026, from AWS's pages of instance types.

offers.py has the regions and zones of each type.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple


class InstanceType(NamedTuple):
    """`gpu_gb`: memory of one GPU. `disk_gb`: local NVMe disks together."""

    gpus: int
    gpu_gb: int
    vcpus: int
    memory_gb: int
    disk_gb: int


INSTANCE_TYPES = {
    # L40S
    "g6e.xlarge": InstanceType(1, 48, 4, 32, 250),
    "g6e.2xlarge": InstanceType(1, 48, 8, 64, 450),
    "g6e.4xlarge": InstanceType(1, 48, 16, 128, 600),
    "g6e.8xlarge": InstanceType(1, 48, 32, 256, 900),
    "g6e.16xlarge": InstanceType(1, 48, 64, 512, 1_900),
    "g6e.12xlarge": InstanceType(4, 48, 48, 384, 3_800),
    "g6e.24xlarge": InstanceType(4, 48, 96, 768, 3_800),
    "g6e.48xlarge": InstanceType(8, 48, 192, 1_536, 7_600),
    # L4
    "g6.xlarge": InstanceType(1, 24, 4, 16, 250),
    "g6.2xlarge": InstanceType(1, 24, 8, 32, 450),
    "g6.4xlarge": InstanceType(1, 24, 16, 64, 600),
    "g6.8xlarge": InstanceType(1, 24, 32, 128, 900),
    "g6.12xlarge": InstanceType(4, 24, 48, 192, 3_760),
    "g6.24xlarge": InstanceType(4, 24, 96, 384, 3_760),
    "g6.48xlarge": InstanceType(8, 24, 192, 768, 7_520),
    # A10G
    "g5.xlarge": InstanceType(1, 24, 4, 16, 250),
    "g5.2xlarge": InstanceType(1, 24, 8, 32, 450),
    "g5.4xlarge": InstanceType(1, 24, 16, 64, 600),
    "g5.8xlarge": InstanceType(1, 24, 32, 128, 900),
    "g5.12xlarge": InstanceType(4, 24, 48, 192, 3_800),
    "g5.24xlarge": InstanceType(4, 24, 96, 384, 3_800),
    "g5.48xlarge": InstanceType(8, 24, 192, 768, 7_600),
    # A100, H100, H200
    "p4d.24xlarge": InstanceType(8, 40, 96, 1_152, 8_000),
    "p4de.24xlarge": InstanceType(8, 80, 96, 1_152, 8_000),
    "p5.48xlarge": InstanceType(8, 80, 192, 2_048, 30_400),
    "p5e.48xlarge": InstanceType(8, 141, 192, 2_048, 30_400),
    "p5en.48xlarge": InstanceType(8, 141, 192, 2_048, 30_400),
}


def near(name: str) -> str:
    """Return the known types that look like `name`, separated by commas; without such, the first ones of the table."""
    return ", ".join(get_close_matches(name, INSTANCE_TYPES, n=4, cutoff=0.5) or list(INSTANCE_TYPES)[:4])
