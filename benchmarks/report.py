"""The report of a benchmark: bounds, tables and pictures, as a page under docs/benchmarks/."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import machine

PAGES = Path(__file__).parents[1] / "docs" / "benchmarks"
OURS, PEERS, GREY = "#c0392b", "#7fb3d5", "#5d6d7e"
COLORS = (OURS, "#1f618d", "#7d3c98", "#229954", "#d68910", "#17a589", GREY)

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}


_BOUNDS = ("", "measured", "bound", "holds")


@dataclass(frozen=True)
class Bound:
    """A figure that has to hold."""

    what: str
    measured: float | None
    """None: it could not be measured here; the page says why."""
    relation: str
    wanted: float
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.measured is not None and _COMPARE[self.relation](self.measured, self.wanted)

    def cells(self) -> tuple[str, str, str, str]:
        measured = "not measured" if self.measured is None else self._written(self.measured) + self.unit
        word = "yes" if self.holds else "" if self.measured is None else "**no**"
        return self.what, measured, f"{self.relation} {number(self.wanted)}{self.unit}", word

    def _written(self, measured: float) -> str:
        """Never as if it were the bound, if it is not."""
        rounded = number(measured)
        is_bound = float(rounded.replace(",", "")) == self.wanted
        return f"{measured:,.4f}" if is_bound and measured != self.wanted else rounded


@dataclass
class Report:
    """Filled by a run, from top to bottom; the bounds come first on the page."""

    name: str
    """Of the page and its pictures."""
    title: str
    intro: str
    command: str = ""
    """What writes the page, if it is not a benchmark of this name."""
    arguments: str = ""
    """Of the benchmark, where they are not the defaults."""
    bounds: list[Bound] = field(default_factory=list)
    machine: str = field(default_factory=machine)
    _body: list[str] = field(default_factory=list)
    _figures: dict[str, Any] = field(default_factory=dict)

    def bound(self, what: str, measured: float | None, relation: str, wanted: float, unit: str = "") -> None:
        self.bounds.append(Bound(what, measured, relation, wanted, unit))

    def text(self, paragraph: str) -> None:
        self._body.append(paragraph)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Numbers are written with the digits that matter."""
        self._body.append(markdown_table(header, rows))

    def plot(self, caption: str, figure: Any, suffix: str = "") -> None:
        """A matplotlib Figure, at this place of the page; the suffix tells several of a page apart."""
        file = f"{self.name}{'-' + suffix if suffix else ''}.png"
        self._figures[file] = figure
        self._body.append(f"![{caption}]({file})")

    @property
    def holds(self) -> bool:
        return all(bound.holds for bound in self.bounds if bound.measured is not None)

    @property
    def markdown(self) -> str:
        command = self.command or f"make bench NAMES={self.name}"
        if self.arguments:
            command += f' ARGS="{self.arguments}"'
        parts = [f"# {self.title}", f"Written by `{command}`. {self.intro}", f"{self.machine}."]
        if self.bounds:
            rows = (bound.cells() for bound in self.bounds)
            parts.append(markdown_table(_BOUNDS, rows))
        return "\n\n".join([*parts, *self._body]) + "\n"

    def write(self, folder: Path = PAGES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.md").write_text(self.markdown)
        for file, figure in self._figures.items():
            figure.savefig(folder / file)


def write_index(folder: Path = PAGES) -> None:
    """README.md there: of each page what it is about, and its bounds."""
    parts = [
        "# Benchmarks",
        "`make bench` measures all and writes these pages, `make bench-delivery` one more.",
    ]
    for page in sorted(folder.glob("*.md")):
        if page.name == "README.md":
            continue
        title, *rest = page.read_text().split("\n\n")
        parts.append(f"## [{title.removeprefix('# ')}]({page.name})")
        parts += [part for part in rest if part.startswith(markdown_table(_BOUNDS, ()))]
    (folder / "README.md").write_text("\n\n".join(part.strip() for part in parts) + "\n")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(value)
    return "" if value is None else str(value)


def number(value: float) -> str:
    """Three digits that count, and all before the point."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


# Pictures -------------------------------------------------------------------------------------------


def figure(width: float = 11, height: float = 4.5) -> tuple[Any, Any]:
    """A Figure and its Axes, in the style of all pages."""
    from matplotlib.figure import Figure

    one = Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")
    axes = one.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return one, axes


def bars(values: Mapping[str, float], label: str, bound: float | None = None) -> Any:
    """A bar for each name, ours in their own colour; `bound` is a line across."""
    one, axes = figure(height=0.9 + 0.42 * len(values))
    names = list(values)[::-1]
    colors = [OURS if "penstock" in name else PEERS for name in names]
    drawn = axes.barh(names, [values[name] for name in names], color=colors, height=0.7)
    axes.bar_label(drawn, [number(values[name]) for name in names], padding=4, color=GREY)
    if bound is not None:
        axes.axvline(bound, color=GREY, linewidth=1, linestyle="--")
    axes.set(xlabel=label)
    return one


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    *,
    is_log: bool = False,
    colors: Mapping[str, str] | None = None,
) -> Any:
    """A line for each name: its xs and its ys. `is_log` is of the x axis."""
    one, axes = figure()
    for position, (name, (xs, ys)) in enumerate(series.items()):
        color = (colors or {}).get(name, COLORS[position % len(COLORS)])
        axes.plot(xs, ys, color=color, label=name, linewidth=1, alpha=0.8)
    axes.set(xlabel=x, ylabel=y, ylim=(0, None))
    if is_log:
        axes.set_xscale("log")
    axes.legend(frameon=False, loc="upper left", ncols=3)
    return one
