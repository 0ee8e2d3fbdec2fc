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
from tests.chaos.checks import Verdict
from tests.chaos.deployments import Setup
from tests.chaos.fault import Kind
from tests.chaos.trial import Event, Result

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

    def trial_begins(self, number: int, setup: Setup) -> None:
        self.say(f"trial {number}: {setup}, {setup.master}", "bold")

    def fault(self, number: int, event: Event) -> None:
        self._totals[event.kind] += event.counts
        if self._status:
            totals = ", ".join(f"{self._totals[kind]} {kind}s" for kind in KINDS)
            self._status.update(f"trial {number}: {totals}")
        self.say(f"trial {number} {line(event)}", "" if event.counts else "dim")

    def trial_ends(self, result: Result) -> None:
        if not result.problems:
            self.say(
                f"trial {result.number}: {result.verdict.rows:,} rows in {result.batches} batches, each "
                f"once, {result.seconds:.0f} s",
                "green",
            )
            return
        self.say(f"trial {result.number} FAILED: {result.setup}, {result.master}", "bold red")
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
    """All trials of a campaign."""

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
            [*self._summary(), "", *self._by_fault(), "", *self._by_setup(), "", *self._kills(), ""]
        )

    def _summary(self) -> list[str]:
        rows = sum(result.verdict.rows for result in self.results)
        lost = sum(result.verdict.lost for result in self.results)
        doubled = sum(result.verdict.doubled for result in self.results)
        failed = [f"trial {result.number}" for result in self.results if result.problems]
        lines = [
            f"**{self.total('kill')} kills**, {self.total('pause')} pauses, {self.total('disk')} full disks, "
            f"{self.total('permission')} revoked permissions, {self.total('connection')} connection faults "
            f"in {self.seconds / 60:.1f} minutes, over {len(self.results)} trials with "
            f"{sum(result.batches for result in self.results):,} batches.",
            f"{rows:,} rows at the ends of the trials: {lost} lost, {doubled} doubled. "
            f"Trials that failed: {', '.join(failed) or 'none'}.",
            "",
            f"Seed {self.seed}; again: `{self.command}`. {os.cpu_count()} cores, "
            f"Python {platform.python_version()}.",
        ]
        return lines + [f"Skipped: {reason}." for reason in self.skipped]

    def _by_fault(self) -> list[str]:
        """What happened, how often and where, and what was found after it."""
        kinds = {event.fault: event.kind for event in self._events()}
        columns = sorted({_where(result) for result in self.results})
        head = ["fault", *columns, "restarts", "rows checked", "lost", "doubled", "files twice", "problems"]
        lines = []
        for fault in sorted(kinds, key=lambda fault: (KINDS.index(kinds[fault]), fault)):
            events = [event for event in self._events() if event.fault == fault]
            times = Counter(
                _where(result)
                for result in self.results
                for event in result.events
                if event.counts and event.fault == fault
            )
            verdicts = [event.verdict for event in events]
            numbers = (
                *(times[column] for column in columns),
                sum(event.restarts for event in events),
                *_sums(verdicts),
                sum(len(verdict.problems) for verdict in verdicts),
            )
            lines.append([fault, *(f"{number:,}" for number in numbers)])
        return _markdown(head, lines)

    def _by_setup(self) -> list[str]:
        head = [
            "where",
            "trials",
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
        for setup in sorted({result.setup for result in self.results}):
            of_setup = [result for result in self.results if result.setup == setup]
            verdicts = [result.verdict for result in of_setup]
            numbers = (
                len(of_setup),
                sum(event.counts for result in of_setup for event in result.events),
                sum(result.batches for result in of_setup),
                *_sums(verdicts),
                sum(verdict.orphans for verdict in verdicts),
                sum(bool(result.problems) for result in of_setup),
            )
            lines.append([setup, *(f"{number:,}" for number in numbers)])
        return _markdown(head, lines)

    def _kills(self) -> list[str]:
        killed = Counter(event.fault for event in self._events() if event.kind == "kill")
        return _markdown(["killed", "times"], [[name, str(times)] for name, times in killed.most_common()])


def _sums(verdicts: Sequence[Verdict]) -> list[int]:
    """Rows, lost, doubled, files twice."""
    names = ("rows", "lost", "doubled", "files_twice")
    return [sum(getattr(verdict, name) for verdict in verdicts) for name in names]


def _where(result: Result) -> str:
    """Format, store and delivery."""
    lake, _environment, store, delivery = result.setup.split(", ")
    return f"{lake}, {store}, {delivery}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)]
