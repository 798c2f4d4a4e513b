"""What dispatcher/shard/README.md shows of the transitions: `python -m tests.support.transition_page` writes both.

The picture is an SVG, because a page that draws a diagram in the browser would load a library from another host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import hypot
from pathlib import Path

from tests.support.world.transitions import TRANSITIONS, CallState

FOLDER = Path(__file__).parents[2] / "dispatcher" / "shard"
PAGE, PICTURE = FOLDER / "README.md", FOLDER / "transitions.svg"
TABLE = re.compile(r"(?<=\n\n)\| from \| fact.*?\n(?=\n)", re.DOTALL)
"""The table in PAGE."""
PLACES = {
    CallState.NEW: (70, 110),
    CallState.QUEUED: (340, 110),
    CallState.SUSPENDED: (340, 310),
    CallState.RUNNING: (620, 110),
    CallState.CANCELLING: (620, 310),
    CallState.ENDED: (850, 210),
}
BENDS = {
    (CallState.QUEUED, CallState.RUNNING): 22,
    (CallState.RUNNING, CallState.QUEUED): 22,
    (CallState.QUEUED, CallState.SUSPENDED): 24,
    (CallState.SUSPENDED, CallState.QUEUED): 24,
    (CallState.QUEUED, CallState.ENDED): 125,
    (CallState.SUSPENDED, CallState.ENDED): -125,
}
"""How far an arrow leaves the straight line, to the left of its direction. Other arrows are straight."""
LABELS = {(CallState.QUEUED, CallState.SUSPENDED): 38, (CallState.SUSPENDED, CallState.QUEUED): -42}
"""How far a label is moved to the right, from the middle of its arrow."""
WIDTH, HEIGHT, LINE = 920, 420, 15
HALF_WIDTH, HALF_HEIGHT = 52, 18
STYLE = (
    "text{font:13px sans-serif;text-anchor:middle;fill:#222}.fact{font-size:12px;fill:#a33c00;stroke:#fff;"
    "stroke-width:4;paint-order:stroke}rect.state{fill:#e8eefc;stroke:#35508f;stroke-width:1.5}"
    "path{fill:none;stroke:#555;stroke-width:1.3;marker-end:url(#tip)}"
)


def write_table() -> str:
    rows = (f"| {each.before} | `{each.fact.__name__}` | {each.after} | {each.when} |\n" for each in TRANSITIONS)
    return "| from | fact | to | when |\n| --- | --- | --- | --- |\n" + "".join(rows)


def draw() -> str:
    """Return the picture of all transitions."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<title>The states of a call, and the facts between them</title><style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<polygon points="0,0 10,5 0,10" fill="#555"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *_arrows(),
        *(_box(state, x, y) for state, (x, y) in PLACES.items()),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _arrows() -> Iterator[str]:
    facts: dict[tuple[CallState, CallState], list[str]] = {}
    for each in TRANSITIONS:
        facts.setdefault((each.before, each.after), []).append(each.fact.__name__)
    labels = []
    for ends, names in facts.items():
        path, x, y = _arrow(*ends)
        x, y = x + LABELS.get(ends, 0), y - LINE * (len(names) - 1) / 2
        yield f'<path d="{path}"/>'
        for number, name in enumerate(names):
            labels.append(f'<text class="fact" x="{x:.0f}" y="{y + number * LINE:.0f}">{name}</text>')
    yield from labels


def _arrow(before: CallState, after: CallState) -> tuple[str, float, float]:
    """Return the path of an arrow, a quadratic curve, and the place of its label."""
    (x1, y1), (x2, y2) = PLACES[before], PLACES[after]
    length, bend = hypot(x2 - x1, y2 - y1), 2 * BENDS.get((before, after), 0)
    bend_x, bend_y = (x1 + x2) / 2 + (y2 - y1) / length * bend, (y1 + y2) / 2 - (x2 - x1) / length * bend
    start, end = _edge(x1, y1, bend_x, bend_y), _edge(x2, y2, bend_x, bend_y)
    path = f"M{start[0]:.0f},{start[1]:.0f} Q{bend_x:.0f},{bend_y:.0f} {end[0]:.0f},{end[1]:.0f}"
    return path, (start[0] + 2 * bend_x + end[0]) / 4, (start[1] + 2 * bend_y + end[1]) / 4 + 4


def _edge(x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """Return where the line from the middle of a box leaves it."""
    across, down = to_x - x, to_y - y
    part = min(HALF_WIDTH / abs(across) if across else 1e9, HALF_HEIGHT / abs(down) if down else 1e9)
    return x + across * part, y + down * part


def _box(state: CallState, x: int, y: int) -> str:
    left, top, width, height = x - HALF_WIDTH, y - HALF_HEIGHT, 2 * HALF_WIDTH, 2 * HALF_HEIGHT
    box = f'<rect class="state" x="{left}" y="{top}" width="{width}" height="{height}" rx="8"/>'
    return f'{box}<text x="{x}" y="{y + 5}">{state}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
    PAGE.write_text(TABLE.sub(lambda _: write_table(), PAGE.read_text("utf-8")), "utf-8")
