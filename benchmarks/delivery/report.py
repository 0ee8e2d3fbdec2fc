"""The report of the benchmark: what was promised, what was measured, and a picture of the batches."""

from __future__ import annotations

import operator
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}
COLORS = {"coupled": "#c0392b", "decoupled": "#1f618d", "outage": "#7d3c98"}


@dataclass(frozen=True)
class Promise:
    """A figure that has to hold."""

    what: str
    measured: float
    relation: str
    bound: float

    @property
    def holds(self) -> bool:
        return _COMPARE[self.relation](self.measured, self.bound)

    def __str__(self) -> str:
        """A row of the report's table."""
        word = "yes" if self.holds else "**no**"
        return f"| {self.what} | {self.measured:,} | {self.relation} {self.bound:,} | {word} |"


@dataclass
class Report:
    """Filled by the run."""

    promises: list[Promise] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    batches: Sequence[dict[str, Any]] = ()
    _rows: list[str] = field(default_factory=list)

    def promise(self, what: str, measured: float, relation: str, bound: float) -> None:
        self.promises.append(Promise(what, measured, relation, bound))

    def add_table(
        self, name: str, batches: Sequence[dict[str, Any]], files: int, commits: int, rows: int, reads: int
    ) -> None:
        times = sorted(line["ms"] for line in batches)
        p95 = times[int(0.95 * (len(times) - 1))]
        self._rows.append(
            f"| {name} | {len(batches):,} | {statistics.median(times):,.0f} | {p95:,.0f} | {commits:,} "
            f"| {files:,} | {rows:,} | {reads:,} |"
        )

    @property
    def text(self) -> str:
        """Markdown."""
        lines = [
            "# A batch each second: coupled and decoupled delivery",
            "",
            "Written by `make bench-delivery`. One Spark writes the same rows into three tables at once,",
            "in 4 tasks a batch; then it is killed, and never started again.",
            "",
            _machine(),
            "",
            "| stream | batches | median batch, ms | p95, ms | table commits | files | rows | reads |",
            "|---|---|---|---|---|---|---|---|",
            *self._rows,
            "",
            "| | measured | bound | holds |",
            "|---|---|---|---|",
            *map(str, self.promises),
            "",
            "Commits and files of the table in the catalog are those of its newest snapshots.",
            *(f"- {problem}" for problem in self.problems),
        ]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        picture = "![The time of each batch](delivery.png)\n"
        (folder / "delivery.md").write_text(f"{self.text}\n{picture}")
        self._plot().savefig(folder / "delivery.png")

    def _plot(self) -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 4.5), dpi=130, layout="constrained", facecolor="white")
        axes = figure.subplots()
        start = min(line["time"] for line in self.batches)
        for name, color in COLORS.items():
            lines = [line for line in self.batches if line.get("query") == name and line["batch"] > 2]
            if lines:
                axes.plot(
                    [(line["time"] - start) / 60 for line in lines],
                    [line["ms"] for line in lines],
                    color=color,
                    label=name,
                    linewidth=1,
                    alpha=0.8,
                )
        axes.set(xlabel="minutes", ylabel="time of a batch, ms", ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper left", ncols=3)
        return figure


def _machine() -> str:
    libraries = ", ".join(
        f"{name} {version(name)}" for name in ("pyspark", "deltalake", "pyiceberg", "pyarrow")
    )
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {libraries}."
