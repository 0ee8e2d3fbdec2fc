"""Names of Paimon data files that Penstock writes: a prefix of its own, and pypaimon's part."""

from __future__ import annotations

import re

from ..parquet.file_names import FileName, FileNames, parse_file_name

_ENDING = ".paimon.parquet"
_OF_PYPAIMON = re.compile(r"\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d+\.parquet")


def file_prefix(names: FileNames) -> str:
    """Return the prefix of the names of the attempt's files. pypaimon appends a UUID."""
    return str(names.name(0, "paimon")).removesuffix(_ENDING) + "."


def parse_paimon_name(path: str) -> FileName | None:
    """Parse the last segment of the path if it was made with `file_prefix`; else None."""
    prefix, ours = _OF_PYPAIMON.subn("", path)
    return parse_file_name(prefix + _ENDING) if ours == 1 else None
