"""The source of a stream (files of ids, one per batch), and the progress of Spark in it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.id_stream import write_ids

ROWS_PER_FILE = 40


class Source:
    """Files of ascending ids in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = 0

    def grow_to(self, files: int) -> None:
        """Add files, each by a rename."""
        while self.files < files:
            first = self.files * ROWS_PER_FILE
            name = f"{self.files:05}.parquet"
            written = self.folder.parent / name
            write_ids(written, range(first, first + ROWS_PER_FILE), self.files)
            written.rename(self.folder / name)
            self.files += 1

    @property
    def relation(self) -> str:
        return f"read_parquet('{self.folder}/*.parquet')"


class Progress:
    """Spark's logs in the checkpoint: which batches are done, and which files they had."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    def committed(self) -> int:
        """Return the last batch that Spark has logged as committed; -1 if there is none."""
        return max(_numbers(self._checkpoint / "commits"), default=-1)

    def files_up_to(self, batch_id: int) -> list[Path]:
        """Return the files of the source in batches up to this one."""
        if batch_id < 0:
            return []
        offset = json.loads((self._checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2])
        last = int(offset["logOffset"])
        return sorted(path for path, position in self._log().items() if position <= last)

    def _log(self) -> dict[Path, int]:
        """Return the files of the source, with their positions in the log of the file source."""
        found = {}
        for entry in (self._checkpoint / "sources" / "0").iterdir():
            if entry.name.removesuffix(".compact").isdecimal():
                for line in entry.read_text().splitlines()[1:]:
                    file = json.loads(line)
                    found[Path(unquote(urlsplit(file["path"]).path))] = int(file["batchId"])
        return found


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()]
    except FileNotFoundError:
        return []
