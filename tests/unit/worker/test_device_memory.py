"""The free memory of the GPUs, as an nvidia-smi of this test reports it: this machine may have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_worker.engines.sleeping_engines import free_device_bytes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def reports(folder: Path, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)


@pytest.mark.parametrize(
    ("script", "mib"),
    [("echo 100; echo 20", 120), ("echo '[N/A]'", None), ("echo 100; exit 9", None), ("", 0)],
)
async def test_the_gpus_are_added_and_nonsense_is_nothing(folder: Path, script: str, mib: int | None) -> None:
    reports(folder, script)
    assert await free_device_bytes() == (None if mib is None else mib << 20)


async def test_only_the_visible_gpus_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports(folder, 'case "$*" in *"-i 1,2") echo 7;; *) echo 9;; esac')
    assert await free_device_bytes() == 9 << 20
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert await free_device_bytes() == 7 << 20


async def test_without_nvidia_smi_nothing_is_measured(folder: Path) -> None:
    assert await free_device_bytes() is None
