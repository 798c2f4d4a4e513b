"""A small chart of bars, one for each hour, as inline SVG. A dashed line is the level that the bars should reach."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from functions.http_api.operator.elements import element

BAR, GAP, HEIGHT = 8, 2, 28


def hours_chart(name: str, by_hour: Sequence[float], level_per_s: float | None, level_name: str) -> Element:
    """Return the chart of service units by hour, the oldest first; the last hour has not ended.

    `level_per_s`: the height of the line in service units a second; None or 0: no line.
    """
    level = (level_per_s or 0.0) * 3600
    top = max([level, *by_hour]) or 1.0
    bars = [_bar(number, value / top, is_last=number == len(by_hour) - 1) for number, value in enumerate(by_hour)]
    width = len(by_hour) * (BAR + GAP)
    line = [_line(width, level / top)] if level else []
    text = f"{name}, service units by hour: {', '.join(f'{value:,.0f}' for value in by_hour)}"
    if level:
        text += f"; {level_name}: {level:,.0f} an hour"
    size = {"viewBox": f"0 0 {width} {HEIGHT}", "width": str(width), "height": str(HEIGHT)}
    return element("svg", element("title", text), *bars, *line, role="img", class_="hours", **size)


def _bar(number: int, part: float, *, is_last: bool) -> Element:
    height = part * (HEIGHT - 2)
    place = {"x": f"{number * (BAR + GAP)}", "y": f"{HEIGHT - height:.1f}"}
    kind = "bar now" if is_last else "bar"
    return element("rect", **place, width=str(BAR), height=f"{height:.1f}", class_=kind)


def _line(width: int, part: float) -> Element:
    y = f"{HEIGHT - part * (HEIGHT - 2):.1f}"
    return element("line", x1="0", x2=str(width), y1=y, y2=y, class_="level")
