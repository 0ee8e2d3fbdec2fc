"""Decides when a stream writes log checkpoints of its table: at the table's interval, unless they take too
long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ..errors import RetryableError, TableChangedError
from ..texts.safe_text import get_logger
from .maintenance import write_log_checkpoint
from .table import load

logger = get_logger(__name__)

QUICK_S = 0.25
"""A log checkpoint that takes no longer is always written when it is due."""
RESTS = 9
"""After one that takes longer, none is written for this multiple of its time: they take at most a tenth of a
stream's time.
"""


class LogCheckpoints:
    """Log checkpoints of the tables that this process commits to. Safe to share among threads.

    A log checkpoint has an entry for each file of the table, which the Delta library reads and writes: four
    seconds for a million files. With a checkpoint every 20 commits, a stream of small batches would spend
    most of its time on them. Readers hardly notice a few dozen more log entries.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._rests_until: dict[str, float] = {}

    def write(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        """Called after a commit for which a log checkpoint is due. A failure does not affect the commit."""
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
"""The instance of this process."""
