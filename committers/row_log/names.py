"""Names of the files of a row log. Imported on executors, too."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..contract import AttemptId

CHECKSUM = "crc32="
"""Prefix of the checksum of a file, in hexadecimal, in the place of its statistics."""
PLANNED_ROWS = b"penstock.rows"
"""Key in the metadata of a file's schema: the columns of the query, as its plan has them."""


@dataclass(frozen=True, slots=True)
class RowLogName:
    """Parsed path of a file: `<query>/penstock-<query>-<batch>-<partition>-<run>-<attempt>.arrow`, of a query
    with routes `…-<attempt>_<first row>.arrow`.
    """

    query_id: str
    batch_id: int
    partition: int
    first_row: int = 0
    """Number of its first row among those that the task has logged."""

    @classmethod
    def parse(cls, path: str) -> RowLogName | None:
        """None if it is not the path of a file of a row log."""
        query_id, _, name = path.partition("/")
        match = re.fullmatch(
            rf"penstock-{re.escape(query_id)}-(\d{{10,19}})-(\d{{5,10}})-[^/]+-\d{{1,19}}(?:_(\d{{1,19}}))?\.arrow",
            name,
        )
        return None if match is None else cls(query_id, int(match[1]), int(match[2]), int(match[3] or 0))


def row_log_path(attempt: AttemptId, first_row: int | None = None) -> str:
    """Path of a file of a task attempt, relative to the row log. No two attempts have the same.

    Args:
        first_row: of a task with several files, see `RowLogName`
    """
    query_id = attempt.query_id
    name = f"{attempt.batch_id:010}-{attempt.partition:05}-{attempt.run_id}-{attempt.attempt}"
    name += "" if first_row is None else f"_{first_row}"
    return f"{query_id}/penstock-{query_id}-{name}.arrow"
