"""Report of a benchmark: a page in docs/benchmarks/ with targets, tables and plots."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import machine
from benchmarks.targets import RESULTS, why_missed

PAGES = Path(__file__).parents[1] / "docs" / "benchmarks"
OURS, PEERS, GREY = "#c0392b", "#7fb3d5", "#5d6d7e"
COLORS = (OURS, "#1f618d", "#7d3c98", "#229954", "#d68910", "#17a589", GREY)

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}


_BOUNDS = ("", "measured", "target", "met")
_MISSED = "**no**"


@dataclass(frozen=True)
class Bound:
    """A target for a measured value."""

    what: str
    measured: float | None
    """None: not measured on this machine; the page gives the reason."""
    relation: str
    wanted: float
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.measured is not None and _COMPARE[self.relation](self.measured, self.wanted)

    def cells(self) -> tuple[str, str, str, str]:
        measured = "not measured" if self.measured is None else self._written(self.measured) + self.unit
        word = "yes" if self.holds else "" if self.measured is None else _MISSED
        return self.what, measured, f"{self.relation} {number(self.wanted)}{self.unit}", word

    def _written(self, measured: float) -> str:
        """Format the value; never round it to the bound."""
        rounded = number(measured)
        is_bound = float(rounded.replace(",", "")) == self.wanted
        return f"{measured:,.4f}" if is_bound and measured != self.wanted else rounded


@dataclass
class Report:
    """The content of a page, in the order in which a run adds it. The page starts with the bounds."""

    name: str
    """File name of the page and prefix of its pictures."""
    title: str
    intro: str
    command: str = ""
    """The command that writes the page, if it is not `make bench` with this name."""
    arguments: str = ""
    """Command-line arguments of the benchmark that differ from the defaults."""
    bounds: list[Bound] = field(default_factory=list)
    machine: str = field(default_factory=machine)
    _body: list[str] = field(default_factory=list)
    _figures: dict[str, Any] = field(default_factory=dict)

    def bound(self, what: str, measured: float | None, relation: str, wanted: float, unit: str = "") -> None:
        self.bounds.append(Bound(what, measured, relation, wanted, unit))

    def text(self, paragraph: str) -> None:
        self._body.append(paragraph)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table. Numbers are rounded to three significant digits."""
        self._body.append(markdown_table(header, rows))

    def plot(self, caption: str, figure: Any, suffix: str = "") -> None:
        """Add a matplotlib Figure. The suffix distinguishes several figures of a page."""
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
        result = [RESULTS[self.name]] if self.name in RESULTS else []
        parts = [f"# {self.title}", *result, f"Written by `{command}`. {self.intro}", f"{self.machine}."]
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
    """Write README.md: the result of each page, and all missed targets with the reason, if one is known."""
    pages: list[tuple[str, str, str]] = []
    missed: dict[tuple[str, str, str], list[str]] = {}
    for page in sorted(folder.glob("*.md")):
        if page.name == "README.md":
            continue
        text = page.read_text()
        title = text.partition("\n")[0].removeprefix("# ")
        targets = [row for row in _target_rows(text) if row[3]]
        count_met = f"{sum(row[3] != _MISSED for row in targets)} of {len(targets)}" if targets else ""
        pages.append((f"[{title}]({page.name})", RESULTS.get(page.stem, ""), count_met))
        for what, measured, target, met_or_not in targets:
            if met_or_not == _MISSED:
                case, _, figure = what.rpartition(": ")
                cases = missed.setdefault((figure, target, why_missed(what)), [])
                cases.append(f"{measured} ({case})" if case else measured)
    parts = [
        "# Benchmarks",
        "`make bench` runs the benchmarks and writes these pages; `make bench-delivery` writes the page on "
        "delivery. All targets were set before the measurement.",
        markdown_table(("page", "result", "targets met"), pages),
        "## Missed targets",
    ]
    rows = [(figure, target, ", ".join(cases), why) for (figure, target, why), cases in missed.items()]
    parts.append(markdown_table(("", "target", "measured", "reason"), rows) if rows else "None.")
    (folder / "README.md").write_text("\n\n".join(parts) + "\n")


def _target_rows(page: str) -> list[list[str]]:
    """Return the cells of a page's table of targets."""
    header = markdown_table(_BOUNDS, ())
    table = page.partition(header)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(value)
    return "" if value is None else str(value)


def number(value: float) -> str:
    """Round to three significant digits, or to an integer from 100 on."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


# Plots ----------------------------------------------------------------------------------------------


def figure(width: float = 11, height: float = 4.5) -> tuple[Any, Any]:
    """Return a Figure and its Axes in the common style."""
    from matplotlib.figure import Figure

    one = Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")
    axes = one.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return one, axes


def bars(values: Mapping[str, float], label: str, bound: float | None = None) -> Any:
    """Return a bar chart; `bound` draws a line. Penstock's bars have a separate colour."""
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
    """Return a line chart; each series has its xs and ys. `is_log`: the x axis is logarithmic."""
    one, axes = figure()
    for position, (name, (xs, ys)) in enumerate(series.items()):
        color = (colors or {}).get(name, COLORS[position % len(COLORS)])
        axes.plot(xs, ys, color=color, label=name, linewidth=1, alpha=0.8)
    axes.set(xlabel=x, ylabel=y, ylim=(0, None))
    if is_log:
        axes.set_xscale("log")
    axes.legend(frameon=False, loc="upper left", ncols=3)
    return one
