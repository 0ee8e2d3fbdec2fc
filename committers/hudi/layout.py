"""Layouts of a timeline: the folder of its files, their names and their form.

| | layout 1, table version 6 | layout 2, table versions 8 and 9 |
|---|---|---|
| folder | `.hoodie` | `.hoodie/timeline` |
| requested, inflight | `<instant>.commit.requested`, `<instant>.inflight` | the same |
| completed | `<instant>.commit` | `<instant>_<time of the completion>.commit` |
| content | JSON | Avro |
| archive | log files with Avro | Parquet files |

In layout 2 the instant alone does not determine the name of the completed file, so that two attempts could
complete one instant under two names. Therefore the first attempt decides on the time: it creates a record of
the instant (`completion_record`), if there is none, and each attempt takes the time that the record has.
"""

from __future__ import annotations

from dataclasses import dataclass

from .names import META


@dataclass(frozen=True, slots=True)
class Layout:
    """How the timeline of one table is stored."""

    folder: str
    archive: str
    """Folder of the archive."""
    has_completion_times: bool = False
    """Layout 2."""

    def requested(self, instant: str) -> str:
        return f"{self.folder}/{instant}.commit.requested"

    def inflight(self, instant: str) -> str:
        return f"{self.folder}/{instant}.inflight"

    def completed(self, instant: str, completion: str) -> str:
        """
        Args:
            completion: time of the completion; layout 1 does not use it
        """
        times = f"{instant}_{completion}" if self.has_completion_times else instant
        return f"{self.folder}/{times}.commit"


LAYOUT_1 = Layout(META, f"{META}/archived")
