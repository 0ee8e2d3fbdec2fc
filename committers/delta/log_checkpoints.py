"""When a stream writes the log checkpoints of its table: as the table says, while they take little time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ..errors import RetryableError, TableChangedError
from ..safe_text import get_logger
from .maintenance import write_log_checkpoint
from .table import load

logger = get_logger(__name__)

QUICK_S = 0.25
"""What takes no longer is written whenever it is due …"""
RESTS = 9
"""… and after one that takes longer, none for so many times as long: they take a tenth of a stream's time."""


class LogCheckpoints:
    """Of the tables that this process commits to. Safe to share among threads.

    A log checkpoint has an entry for each file of the table, which the Delta library reads and writes: four
    seconds for a million. Every 20 commits of a stream of small batches that would be most of its time.
    Readers hardly notice: beside such a checkpoint, some dozens of entries more take them no time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._rests_until: dict[str, float] = {}

    def write(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        """After a commit for which one is due; the commit stands, whatever comes of it."""
        start = self._clock()
        if start < self._rests_until.get(table_uri, start):
            return
        try:
            write_log_checkpoint(load(table_uri, storage_options))
        except (RetryableError, TableChangedError) as error:
            logger.warning("%s", error)
        end = self._clock()
        self._rests_until[table_uri] = end + RESTS * (end - start) if end - start > QUICK_S else end


LOG_CHECKPOINTS = LogCheckpoints()
"""Of this process."""
