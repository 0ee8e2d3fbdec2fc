"""The invariant that must hold for a table after any history of crashes and restarts.

Standard library only, without I/O: it works for everything that can be described as an `Observation`, be it a
real table or one in a simulator's memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Observation:
    """The state of a table, its source and its store after recovery."""

    rows: int
    """Rows in the table."""
    lost: int
    """Source rows that are missing in the table, by multiset of ids."""
    doubled: int
    """Surplus rows in the table, by multiset of ids, including rows that are not in the source."""
    added: Mapping[str, int]
    """How often the table references each data file, by path: in its live version or in its whole history."""
    missing: Collection[str]
    """Data files that the live version references and that are not in storage."""
    orphans: int
    """Data files in storage that the table does not reference. Allowed: the clean-up deletes them."""
    tokens: Sequence[tuple[str, int, int]]
    """(query id, batch id, table version), in the order of the table's history."""
    pending: Sequence[str]
    """Batches that are still PREPARED, as text."""

    @property
    def problems(self) -> list[str]:
        """See `find_problems`."""
        return find_problems(self)

    def __str__(self) -> str:
        """Return the numbers in one line, and one line for each problem."""
        summary = (
            f"{_count(self.rows, 'row')}: {self.lost:,} lost, {self.doubled:,} doubled; "
            f"{_count(len(self.added), 'data file')}: {len(self.missing):,} missing, "
            f"{self.orphans:,} orphaned; "
            f"{_count(len(self.tokens), 'token')}"
        )
        return "\n".join([summary, *(f"- {problem}" for problem in self.problems)])


def find_problems(observation: Observation) -> list[str]:
    """Return the violations of the invariant, one sentence per kind of problem; empty if it holds.

    Each source row is in the table exactly once, by multiset of ids. No data file is referenced more than
    once, and none is missing from storage. The tokens of each query ascend. No batch is still PREPARED.
    """
    return [
        *_row_problems(observation),
        *_file_problems(observation),
        *_token_problems(observation.tokens),
        *_store_problems(observation.pending),
    ]


def _row_problems(observation: Observation) -> list[str]:
    problems = []
    if observation.lost:
        problems.append(f"{_count(observation.lost, 'row')} of the source lost: not in the table")
    if observation.doubled:
        problems.append(
            f"{_count(observation.doubled, 'row')} doubled: in the table more often than in the source"
        )
    return problems


def _file_problems(observation: Observation) -> list[str]:
    problems = []
    repeated = sorted(path for path, count in observation.added.items() if count > 1)
    if repeated:
        problems.append(
            f"{_count(len(repeated), 'data file')} named more than once by the table, "
            f"first {repeated[0]} ({observation.added[repeated[0]]} times)"
        )
    if observation.missing:
        problems.append(
            f"{_count(len(observation.missing), 'data file')} named by the table but missing from storage, "
            f"so that it cannot be read, first {min(observation.missing)}"
        )
    return problems


def _token_problems(tokens: Sequence[tuple[str, int, int]]) -> list[str]:
    problems = []
    last: dict[str, int] = {}
    for query_id, batch_id, version in tokens:
        before = last.get(query_id)
        if before is not None and batch_id <= before:
            problems.append(
                f"the token of query {query_id} does not ascend: "
                f"batch {batch_id} follows batch {before} in version {version} of the table"
            )
        last[query_id] = batch_id
    return problems


def _store_problems(pending: Sequence[str]) -> list[str]:
    if not pending:
        return []
    word = "batch" if len(pending) == 1 else "batches"
    return [f"{len(pending):,} {word} still PREPARED in the store after recovery, first {pending[0]}"]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
