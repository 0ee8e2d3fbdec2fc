"""Output of the demo: text and a progress bar on a terminal, plain lines in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

WIDTH_MAX = 100
BATCHES_PER_LINE = 10
"""Batches between two progress lines without a terminal."""

console = Console(highlight=False, markup=False, emoji=False)
if not console.is_terminal or console.width > WIDTH_MAX:
    console.width = WIDTH_MAX


def heading(text: str, style: str = "bold") -> None:
    console.print(f"\n{text}", style=style)


def print_text(text: str, style: str = "") -> None:
    console.print(Padding(Text(text, style), (0, 0, 0, 2), expand=False))


def print_path(what: str, where: str) -> None:
    """Print a line without line breaks, for copying."""
    console.print(f"  {what:<31} {where}", soft_wrap=True)


def shown(path: Path) -> str:
    """Return the path relative to the working directory if possible."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


class BatchProgress:
    """Shows the committed batches of each stream while a driver runs."""

    def __init__(self, streams: Sequence[str], total: int) -> None:
        self._total = total
        self._first: dict[str, int] = {}
        self._printed: dict[str, int] = {}
        self._bar = Progress(
            TextColumn("  {task.fields[stream]:<8} {task.description:<12}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f} of {task.total:.0f} batches, {task.fields[rows]:,} rows"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {
            name: self._bar.add_task("Spark starts", total=total, stream=name, rows=0) for name in streams
        }

    def __enter__(self) -> BatchProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, stream: str, batches: int, rows: int) -> None:
        first, printed = self._first.setdefault(stream, batches), self._printed.setdefault(stream, batches)
        now = "Spark starts" if batches == first else "committed"
        self._bar.update(self._tasks[stream], completed=batches, rows=rows, description=now)
        is_due = batches >= printed + BATCHES_PER_LINE or batches == self._total > printed
        if not console.is_terminal and is_due:
            print_text(f"{stream:<8} committed {batches} of {self._total} batches, {rows:,} rows")
            self._printed[stream] = batches
