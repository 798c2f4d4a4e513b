"""AWS's API models are read once per process of tests. Each boto3 session reads them again: EC2's takes a second."""

from __future__ import annotations

from functools import cache, partial

from botocore.loaders import JSONFileLoader

_read = cache(partial(JSONFileLoader.load_file, JSONFileLoader()))
JSONFileLoader.load_file = lambda self, file_path: _read(file_path)  # type: ignore[method-assign]
