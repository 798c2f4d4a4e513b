"""Whether the model of a pool fits: its files in S3 beside the memory of the GPUs and the disk of the instance."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from headgate.deployment.pool import USABLE, Pool
from headgate.doctor.account import reason
from headgate.doctor.finding import Finding, failed, ok, warning

GB = 1e9
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def check_weights(s3: Any, name: str, pool: Pool) -> Finding:
    """Return what the files of the pool's model say. A pool without a model must not be given."""
    check = f"model of {name}"
    bucket, _, prefix = str(pool.model).removeprefix("s3://").partition("/")
    below = f"{prefix.rstrip('/')}/"
    try:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=below)
        files = {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", [])}
    except (BotoCoreError, ClientError) as error:
        return warning(check, f"{pool.model}: {reason(error)}", "allow s3:ListBucket, or check the address yourself")
    weights_gb = sum(size for key, size in files.items() if key.endswith(WEIGHTS)) / GB
    if not weights_gb:
        return failed(check, f"{pool.model} has no weights in its {len(files)} files", "copy the model there first")
    return _fits(check, pool, weights_gb, sum(files.values()) / GB)


def _fits(check: str, pool: Pool, weights_gb: float, all_gb: float) -> Finding:
    seen = f"{weights_gb:.1f} GB of weights"
    for name, kind in pool.types().items():
        usable_gb = USABLE * kind.gpu_gb * pool.tensor_parallel
        if weights_gb > usable_gb:
            advice = "raise tensor_parallel, or name instance types with more GPU memory"
            return failed(check, f"{seen}, and {pool.tensor_parallel} GPU(s) of {name} have {usable_gb:.0f}", advice)
        if all_gb > kind.disk_gb:
            advice = "name instance types with a larger disk"
            return failed(check, f"{all_gb:.0f} GB of files, and the disk of {name} has {kind.disk_gb}", advice)
    return ok(check, f"{seen} fit into {pool.tensor_parallel} GPU(s) of {', '.join(pool.instance_types)}")
