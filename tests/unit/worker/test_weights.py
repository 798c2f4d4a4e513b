"""A model's files from S3 (moto): whole, unchanged, once, and never half."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from gpu_worker import weights

FILES = {"config.json": b"{}", "model-1.safetensors": b"a" * 9_000_000, "tokenizer/vocab.json": b"[]"}
SOURCE = "s3://models/llama/"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        made = boto3.client("s3")
        made.create_bucket(Bucket="models")
        for name, content in {**FILES, "../other/file": b"x"}.items():
            key = f"llama/{name}" if not name.startswith("..") else "llama-2/file"
            made.put_object(Bucket="models", Key=key, Body=content)
        yield made


def files(folder: Path) -> dict[str, bytes]:
    ours = (weights.RECORD, weights.LOCK)
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in ours]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_the_folder_has_exactly_the_models_files(client: Any, tmp_path: Path) -> None:
    (tmp_path / "old.bin").write_bytes(b"old")
    assert weights.copy(client, SOURCE, tmp_path) == len(FILES)
    assert files(tmp_path) == FILES


@pytest.mark.parametrize("source", ["s3://models/llama", "s3://models/llama/"])
def test_another_models_name_that_begins_alike_is_not_copied(client: Any, tmp_path: Path, source: str) -> None:
    weights.copy(client, source, tmp_path)
    assert files(tmp_path) == FILES


def test_what_is_there_is_not_copied_again(client: Any, tmp_path: Path) -> None:
    weights.copy(client, SOURCE, tmp_path)
    assert weights.copy(client, SOURCE, tmp_path) == 0


def test_a_changed_object_is_copied_again(client: Any, tmp_path: Path) -> None:
    weights.copy(client, SOURCE, tmp_path)
    client.put_object(Bucket="models", Key="llama/config.json", Body=b"[]")
    assert weights.copy(client, SOURCE, tmp_path) == 1
    assert files(tmp_path) == {**FILES, "config.json": b"[]"}


@pytest.mark.parametrize("damage", [b"", b"a" * 100])
def test_a_damaged_file_is_copied_again(client: Any, tmp_path: Path, damage: bytes) -> None:
    weights.copy(client, SOURCE, tmp_path)
    (tmp_path / "model-1.safetensors").write_bytes(damage)
    assert weights.copy(client, SOURCE, tmp_path) == 1
    assert files(tmp_path) == FILES


@pytest.mark.parametrize("record", ["", "[", "[]", "null"])
def test_without_a_readable_record_everything_is_copied(client: Any, tmp_path: Path, record: str) -> None:
    weights.copy(client, SOURCE, tmp_path)
    (tmp_path / weights.RECORD).write_text(record)
    assert weights.copy(client, SOURCE, tmp_path) == len(FILES)


def test_an_interrupted_copy_goes_on(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = weights._copy_one
    copied: list[weights.Source] = []

    def dies(client: Any, bucket: str, source: weights.Source, folder: Path) -> None:
        if len(copied) == 2:
            raise KeyboardInterrupt
        copied.append(source)
        whole(client, bucket, source, folder)

    monkeypatch.setattr(weights, "_copy_one", dies)
    with pytest.raises(KeyboardInterrupt):
        weights.copy(client, SOURCE, tmp_path)
    monkeypatch.setattr(weights, "_copy_one", whole)
    assert weights.copy(client, SOURCE, tmp_path) == 1
    assert files(tmp_path) == FILES


def test_a_partial_file_never_has_the_files_name(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(bucket: str, key: str, path: str, **_: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(client, "download_file", breaks)
    with pytest.raises(weights.CopyFailed, match="disk full"):
        weights.copy(client, SOURCE, tmp_path)
    assert not set(files(tmp_path)) & set(FILES)


def test_an_object_that_changes_while_it_is_copied(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "download_file", lambda bucket, key, path, **_: Path(path).write_bytes(b"another"))
    with pytest.raises(weights.CopyFailed, match="changed while it was copied"):
        weights.copy(client, SOURCE, tmp_path)


def test_two_workers_of_a_host_copy_once(client: Any, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        copied = list(threads.map(lambda _: weights.copy(client, SOURCE, tmp_path), range(2)))
    assert sorted(copied) == [0, len(FILES)]


def test_a_disk_that_is_too_small_is_refused_before_the_copy(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, 10**6))
    with pytest.raises(weights.CopyFailed, match="larger disk"):
        weights.copy(client, SOURCE, tmp_path)
    assert files(tmp_path) == {}


@pytest.mark.parametrize("name", ["../escape", "a/../../escape", weights.RECORD, "x.partial"])
def test_a_name_that_is_no_file_of_a_model_is_refused(client: Any, tmp_path: Path, name: str) -> None:
    client.put_object(Bucket="models", Key=f"llama/{name}", Body=b"x")
    with pytest.raises(weights.CopyFailed, match="cannot be a file of a model"):
        weights.copy(client, SOURCE, tmp_path / "model")
    assert not (tmp_path / "escape").exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [("s3://models/none/", "there is no object"), ("s3://absent/x/", "cannot be listed"), ("/model", "no place in S3")],
)
def test_the_command_says_why(
    client: Any, tmp_path: Path, source: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weights.main([source, str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_the_command(client: Any, tmp_path: Path) -> None:
    assert weights.main([SOURCE, str(tmp_path)]) == 0
    assert json.loads((tmp_path / weights.RECORD).read_text()).keys() == FILES.keys()
