"""Draws the picture of the README from the tables in docs/benchmarks/: `make figures`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import GREY, OURS, PAGES, PEERS, number

PICTURE = PAGES.parent / "images" / "figures.png"
NAMES = {
    "parquet": "Spark's Parquet sink",
    "delta-spark": "delta-spark",
    "iceberg-spark": "Iceberg's sink",
    "penstock.delta": "penstock.delta",
    "penstock.iceberg": "penstock.iceberg",
    "penstock.postgres": "penstock.postgres",
    "foreach-jdbc": "Spark's JDBC sink",
    "copy": "COPY, without Spark",
}


@dataclass(frozen=True)
class Panel:
    """One group of bars."""

    title: str
    page: str
    section: str
    """The heading above the table; empty for the first table with the column."""
    column: str
    sinks: tuple[str, ...]
    unit: str


LAKE = ("parquet", "delta-spark", "iceberg-spark", "penstock.delta", "penstock.iceberg")
ROWS = "million rows/s"
PANELS = (
    Panel("Large batches, 4 cores", "throughput", "## lineitem, local[2], 4 cores", ROWS, LAKE, ROWS),
    Panel(
        "Large batches into 200 partitions, 4 cores",
        "partitions",
        "## lineitem into 200 partitions, local[2], 4 cores",
        ROWS,
        LAKE,
        ROWS,
    ),
    Panel(
        "A batch of 100 rows, 2 cores: lower is better", "small_batches", "", "median batch, ms", LAKE, "ms"
    ),
    Panel(
        "Large batches into Postgres, 2 cores",
        "postgres_sink",
        "",
        ROWS,
        ("foreach-jdbc", "penstock.postgres", "copy"),
        ROWS,
    ),
)


def column_of(page: str, section: str, column: str) -> dict[str, float]:
    """Return the column of the first table below the heading that has it, keyed by the first column.

    Raises:
        ValueError: no table below the heading has the column.
    """
    _, found, below = page.partition(section) if section else ("", "x", page)
    lines = iter(below.splitlines())
    for line in lines:
        header = _cells(line)
        if found and column in header:
            at = header.index(column)
            next(lines)
            values = {}
            for row in lines:
                if not row.startswith("|"):
                    break
                cells = _cells(row)
                values[cells[0].strip("`")] = float(cells[at].replace(",", ""))
            return values
    raise ValueError(f"no table below {section!r} has the column {column!r}")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def draw() -> Any:
    """Return a matplotlib Figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), dpi=130, layout="constrained", facecolor="white")
    for axes, panel in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        values = column_of((PAGES / f"{panel.page}.md").read_text(), panel.section, panel.column)
        shown = {NAMES[sink]: values[sink] for sink in reversed(panel.sinks)}
        colors = [OURS if name.startswith("penstock") else PEERS for name in shown]
        bars = axes.barh(list(shown), list(shown.values()), color=colors, height=0.7)
        axes.bar_label(
            bars, [f"{number(value)} {panel.unit}" for value in shown.values()], padding=4, color=GREY
        )
        axes.set_title(panel.title, loc="left", fontsize=11, color="#1b4f72", fontweight="bold")
        axes.set_xlim(0, max(shown.values()) * 1.5)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.tick_params(length=0)
    return figure


def main(picture: Path = PICTURE) -> None:
    draw().savefig(picture)


if __name__ == "__main__":
    main()
