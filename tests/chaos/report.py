"""What a campaign came to: a line per fault while it runs, and tables at its end."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from tests.chaos.fault import Kind
from tests.chaos.life import Event, Result
from tests.chaos.places import Place

KINDS: tuple[Kind, ...] = get_args(Kind)


class Screen:
    """A line per fault; on a terminal, below them, a line with the totals that stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._totals: Counter[str] = Counter()
        self._status: Status | None = console.status("starting") if console.is_terminal else None
        if self._status:
            self._status.start()

    def close(self) -> None:
        if self._status:
            self._status.stop()

    def say(self, text: str, style: str = "") -> None:
        self._console.print(escape(text), style=style, soft_wrap=True, highlight=False)

    def life_begins(self, number: int, place: Place) -> None:
        self.say(f"life {number}: {place}, {place.master}", "bold")

    def fault(self, number: int, event: Event) -> None:
        self._totals[event.kind] += event.counts
        if self._status:
            totals = ", ".join(f"{self._totals[kind]} {kind}s" for kind in KINDS)
            self._status.update(f"life {number}: {totals}")
        self.say(f"life {number} {line(event)}", "" if event.counts else "dim")

    def life_ends(self, result: Result) -> None:
        if not result.problems:
            self.say(
                f"life {result.number}: well; {result.verdict.rows:,} rows in {result.batches} batches, each "
                f"once, {result.seconds:.0f} s",
                "green",
            )
            return
        self.say(f"life {result.number} FAILED: {result.place}, {result.master}", "bold red")
        for event in result.events:
            self.say(f"    {line(event)}")
        for problem in result.problems:
            self.say(f"    {problem}", "red")


def line(event: Event) -> str:
    """One fault in one line."""
    found = "; ".join(event.verdict.problems) or f"{event.verdict.rows:,} rows, each once"
    text = (
        f"{event.at_s:6.1f} s  {event.fault}: {event.what}; went on after {event.healed_s:.1f} s, "
        f"{event.restarts} restarts; {found}"
    )
    return text if event.counts else f"{event.at_s:6.1f} s  ({event.fault}: {event.what})"


@dataclass(frozen=True)
class Report:
    """All lives of a campaign."""

    seed: int
    minutes: float
    command: str
    seconds: float
    results: Sequence[Result]
    skipped: Sequence[str] = field(default_factory=tuple)
    """What this machine could not offer, and why."""

    @property
    def is_good(self) -> bool:
        return not any(result.problems for result in self.results)

    def total(self, kind: Kind) -> int:
        return sum(event.kind == kind for event in self._events())

    def _events(self) -> Iterable[Event]:
        return (event for result in self.results for event in result.events if event.counts)

    def write(self, folder: Path) -> None:
        (folder / "report.md").write_text(self.markdown())
        (folder / "report.json").write_text(json.dumps(asdict(self), indent=1))

    def markdown(self) -> str:
        return "\n".join(
            [*self._summary(), "", *self._by_fault(), "", *self._by_place(), "", *self._kills(), ""]
        )

    def _summary(self) -> list[str]:
        rows = sum(result.verdict.rows for result in self.results)
        lost = sum(result.verdict.lost for result in self.results)
        doubled = sum(result.verdict.doubled for result in self.results)
        failed = [f"life {result.number}" for result in self.results if result.problems]
        lines = [
            f"**{self.total('kill')} kills**, {self.total('pause')} pauses, {self.total('disk')} full disks, "
            f"{self.total('permission')} revoked permissions, {self.total('connection')} connection faults "
            f"in {self.seconds / 60:.1f} minutes, over {len(self.results)} lives with "
            f"{sum(result.batches for result in self.results):,} batches.",
            f"{rows:,} rows at the ends of the lives: {lost} lost, {doubled} doubled. "
            f"Lives that failed: {', '.join(failed) or 'none'}.",
            "",
            f"Seed {self.seed}; again: `{self.command}`. {os.cpu_count()} cores, "
            f"Python {platform.python_version()}.",
        ]
        return lines + [f"Skipped: {reason}." for reason in self.skipped]

    def _by_fault(self) -> list[str]:
        """What happened, how often and where, and what was found after it."""
        kinds = {event.fault: event.kind for event in self._events()}
        homes = sorted({_home(result) for result in self.results})
        head = ["fault", *homes, "restarts", "rows checked", "lost", "doubled", "files twice", "problems"]
        lines = []
        for fault in sorted(kinds, key=lambda fault: (KINDS.index(kinds[fault]), fault)):
            events = [event for event in self._events() if event.fault == fault]
            times = Counter(
                _home(result)
                for result in self.results
                for event in result.events
                if event.counts and event.fault == fault
            )
            verdicts = [event.verdict for event in events]
            numbers = (
                *(times[home] for home in homes),
                sum(event.restarts for event in events),
                sum(verdict.rows for verdict in verdicts),
                sum(verdict.lost for verdict in verdicts),
                sum(verdict.doubled for verdict in verdicts),
                sum(verdict.files_twice for verdict in verdicts),
                sum(len(verdict.problems) for verdict in verdicts),
            )
            lines.append([fault, *(f"{number:,}" for number in numbers)])
        return _markdown(head, lines)

    def _by_place(self) -> list[str]:
        head = [
            "where",
            "lives",
            "faults",
            "batches",
            "rows",
            "lost",
            "doubled",
            "files twice",
            "orphans",
            "failed",
        ]
        lines = []
        for place in sorted({result.place for result in self.results}):
            of_place = [result for result in self.results if result.place == place]
            verdicts = [result.verdict for result in of_place]
            numbers = (
                len(of_place),
                sum(event.counts for result in of_place for event in result.events),
                sum(result.batches for result in of_place),
                sum(verdict.rows for verdict in verdicts),
                sum(verdict.lost for verdict in verdicts),
                sum(verdict.doubled for verdict in verdicts),
                sum(verdict.files_twice for verdict in verdicts),
                sum(verdict.orphans for verdict in verdicts),
                sum(bool(result.problems) for result in of_place),
            )
            lines.append([place, *(f"{number:,}" for number in numbers)])
        return _markdown(head, lines)

    def _kills(self) -> list[str]:
        killed = Counter(event.fault for event in self._events() if event.kind == "kill")
        return _markdown(["killed", "times"], [[name, str(times)] for name, times in killed.most_common()])


def _home(result: Result) -> str:
    """Format, store and delivery."""
    lake, _environment, store, delivery = result.place.split(", ")
    return f"{lake}, {store}, {delivery}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)]
