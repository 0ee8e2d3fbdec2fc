"""The report of a campaign."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from tests.chaos.checks import Verdict
from tests.chaos.faults import Kind
from tests.chaos.trial import Result

_KINDS: Sequence[Kind] = get_args(Kind)


@dataclass(frozen=True)
class Report:
    """All trials of a campaign."""

    seed: int
    command: str
    seconds: float
    results: Sequence[Result]
    skipped: Sequence[str] = ()
    """What this machine does not offer, and why."""

    @property
    def is_good(self) -> bool:
        return not any(result.problems for result in self.results)

    def write(self, folder: Path) -> None:
        (folder / "report.md").write_text(self.markdown())
        (folder / "report.json").write_text(json.dumps(asdict(self), indent=1))

    def markdown(self) -> str:
        """Return the totals, and a table with the number of faults by format, store and delivery."""
        times = Counter(
            (event.kind, event.fault, _where(result))
            for result in self.results
            for event in result.events
            if event.counts
        )
        kinds = ", ".join(
            f"{sum(n for (kind, *_), n in times.items() if kind == one)} {one} faults" for one in _KINDS
        )
        verdicts = [result.verdict for result in self.results]
        failed = [f"trial {result.number}" for result in self.results if result.problems]
        places = sorted({_where(result) for result in self.results})
        names = sorted({(_KINDS.index(kind), fault) for kind, fault, _ in times})
        table = [
            [fault, *(str(times[_KINDS[kind], fault, place]) for place in places)] for kind, fault in names
        ]
        lines = [
            f"**{kinds}** in {self.seconds / 60:.1f} minutes, over {len(self.results)} trials with "
            f"{sum(result.batches for result in self.results):,} batches.",
            f"{sum(verdict.rows for verdict in verdicts):,} rows at the ends of the trials: "
            f"{sum(verdict.lost for verdict in verdicts)} lost, "
            f"{sum(verdict.doubled for verdict in verdicts if not verdict.doubles_max)} doubled. "
            f"{_of_services(verdicts)}"
            f"Trials that failed: {', '.join(failed) or 'none'}.",
            "",
            f"Seed {self.seed}; again: `{self.command}`. {os.cpu_count()} cores, "
            f"Python {platform.python_version()}.",
            *(f"Skipped: {reason}." for reason in self.skipped),
            "",
        ]
        rows = [["fault", *places], ["---"] * (1 + len(places)), *table]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def _of_services(verdicts: Sequence[Verdict]) -> str:
    """Return what became of the rows of services that do not know ids; empty without them."""
    found = [verdict for verdict in verdicts if verdict.doubles_max]
    if not found:
        return ""
    return (
        f"{sum(verdict.rows for verdict in found):,} of them at services without ids, there "
        f"{sum(verdict.doubled for verdict in found):,} doubled; the declared windows allow "
        f"{sum(verdict.doubles_max for verdict in found):,}. "
    )


def _where(result: Result) -> str:
    table_format, _environment, store, delivery = result.setup.split(", ")
    return f"{table_format}, {store}, {delivery}"
