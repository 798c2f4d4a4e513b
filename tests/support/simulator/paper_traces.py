"""The published workloads and measured runs, where they are: tests that read them skip elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TRACES = Path(os.environ.get("HEADGATE_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the published traces are not here (HEADGATE_TRACES)")
