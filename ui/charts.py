"""Charts as inline SVG, drawn on the server. Colours come from the style sheet; texts stand beside them.

All shapes are stretched to the width of the page, so that they work at any width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup, escape

WIDTH, HEIGHT = 1000.0, 100.0
GAP_SHARE = 0.25
"""Share of a column that stays empty."""
BAR_MIN = 4.0
"""The narrowest bar of a timeline, of `WIDTH`."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a chart."""

    value: float
    css: str
    title: str


def columns(values: Sequence[Column], label: str) -> Markup:
    """Return columns next to each other, oldest first."""
    highest = max((one.value for one in values), default=0) or 1
    step = WIDTH / max(len(values), 1)
    shapes = [
        _rect(
            number * step,
            HEIGHT * (1 - one.value / highest),
            step * (1 - GAP_SHARE),
            HEIGHT * one.value / highest,
            one.css,
            one.title,
        )
        for number, one in enumerate(values)
    ]
    return _svg(shapes, "chart", label)


def steps(times: Sequence[datetime], counts: Sequence[int], until: datetime, label: str) -> Markup:
    """Return the area below a number that changes at these times."""
    if not times:
        return _svg([], "chart", label)
    seconds = max((until - times[0]).total_seconds(), 1e-6)
    highest = max(*counts, 1)
    points, last = [f"0,{HEIGHT:.1f}"], HEIGHT
    for moment, count in zip(times, counts, strict=True):
        x = WIDTH * min((moment - times[0]).total_seconds() / seconds, 1)
        y = HEIGHT * (1 - count / highest)
        points += [f"{x:.1f},{last:.1f}", f"{x:.1f},{y:.1f}"]
        last = y
    points += [f"{WIDTH:.1f},{last:.1f}", f"{WIDTH:.1f},{HEIGHT:.1f}"]
    return _svg([Markup('<polygon class="area" points="{}"/>').format(" ".join(points))], "chart", label)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a bar of a timeline."""

    start: datetime
    end: datetime
    css: str
    title: str


def timeline(spans: Iterable[Span], start: datetime, end: datetime) -> Markup:
    """Return one bar of a timeline that shows the time from `start` to `end`."""
    seconds = max((end - start) / timedelta(seconds=1), 1e-6)
    shapes = []
    for span in spans:
        left = WIDTH * (span.start - start).total_seconds() / seconds
        width = max(WIDTH * (span.end - span.start).total_seconds() / seconds, BAR_MIN)
        shapes.append(_rect(min(left, WIDTH - width), 0, width, HEIGHT, span.css, span.title))
    return _svg(shapes, "bar", "")


def shares(values: Sequence[tuple[str, int]]) -> list[tuple[str, int, Markup]]:
    """Return each value with its label and a bar in proportion to the largest one."""
    highest = max((value for _, value in values), default=0) or 1
    return [
        (name, value, _svg([_rect(0, 0, WIDTH * value / highest, HEIGHT, "fill", "")], "bar", ""))
        for name, value in values
    ]


def _rect(x: float, y: float, width: float, height: float, css: str, title: str) -> Markup:
    inner = Markup("<title>{}</title>").format(title) if title else ""
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}">{}</rect>').format(
        f"{x:.1f}", f"{y:.1f}", f"{width:.1f}", f"{height:.1f}", css, inner
    )


def _svg(shapes: Iterable[Markup], css: str, label: str) -> Markup:
    name = Markup(' role="img" aria-label="{}"').format(label) if label else Markup(' aria-hidden="true"')
    return Markup('<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none"{}>{}</svg>').format(
        css, f"{WIDTH:.0f}", f"{HEIGHT:.0f}", name, escape("").join(shapes)
    )
