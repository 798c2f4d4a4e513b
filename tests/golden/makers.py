"""All golden files, by name."""

from __future__ import annotations

from functools import partial

from tests.golden import Maker, written
from tests.golden.gate import make_frames, make_log, make_snapshot
from tests.golden.simulated import RUNS, make_run
from tests.golden.stores import make_items, make_rows, read_rows
from tests.golden.transcripts import make_transcript

MAKERS: dict[str, Maker] = {
    "log-5.jsonl": partial(make_log, 5),
    "log-6.jsonl": partial(make_log, 6),
    "log-5-to-6.jsonl": partial(make_log, 5, changes=True),
    "snapshot-5.jsonl": partial(make_snapshot, 5),
    "snapshot-6.jsonl": partial(make_snapshot, 6),
    "snapshot-5-to-6.jsonl": partial(make_snapshot, 5, changes=True),
    "frames-5.jsonl": partial(make_frames, 5),
    "frames-6.jsonl": partial(make_frames, 6),
    "items.jsonl": make_items,
    "rows-4.sql": lambda: written("rows-4.sql"),  # no present code writes this layout
    "rows-5.sql": make_rows,
    "answers.txt": lambda: read_rows(written("rows-4.sql")),
    "transcript.txt": make_transcript,
    **{f"simulated-{name}.json": partial(make_run, name) for name in RUNS},
}
