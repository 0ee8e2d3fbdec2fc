"""The merge tree of a Paimon table with a primary key: kinds of rows, and sequence numbers.

Of the rows of a key the one with the greatest sequence number counts; with the table option `sequence.field`,
the one with the greatest value of these columns, and then of the sequence number. So a row has to have a
greater number than all rows of the snapshot on which its commit is based. Other writers of Paimon read the
greatest number of a bucket when they start, and count on from there.

Tasks write the numbers before anyone knows that snapshot. So they take the time in microseconds, which is
greater than what others have counted; the commit checks it, see `changes`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa

from ..arrow_values import numeric_scalar

SEQUENCE = "_SEQUENCE_NUMBER"
KIND = "_VALUE_KIND"
KEY_PREFIX = "_KEY_"
"""Columns that data files have beside those of the table."""
INSERT, DELETE = 0, 3
"""Kinds of rows. Others tell a changelog what an update has replaced; a merge takes them like these."""

_PER_BATCH = 2
"""Numbers of a batch: of its rows, and of rows that its commit writes again."""


def kind_of(kind: int) -> pa.Scalar:
    return numeric_scalar(kind, pa.int32()).cast(pa.int8())


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequence numbers of the batches that are written with one plan."""

    first: int
    batch_id: int
    """The batch that was planned. Later ones may have the same plan."""

    @classmethod
    def of_plan(cls, newest: int, batch_id: int) -> Sequences:
        """
        Args:
            newest: the greatest number of the table
        """
        return cls(max(time.time_ns() // 1000, newest + 1), batch_id)

    def of_batch(self, batch_id: int) -> int:
        """Return the number of all rows of a batch. Its tasks have no key twice."""
        return self.first + _PER_BATCH * (batch_id - self.batch_id)
