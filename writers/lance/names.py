"""Names of Lance data files that Penstock writes: those of its Parquet files, with another ending."""

from __future__ import annotations

from ..parquet.file_names import FileName, FileNames, parse_file_name

_ENDING = ".lance"
_PARQUET = ".parquet"


def file_name(names: FileNames, sequence: int) -> str:
    """Return the name of the attempt's file with this number, starting at 0."""
    return str(names.name(sequence, _ENDING[1:])).removesuffix(_PARQUET)


def parse_lance_name(path: str) -> FileName | None:
    """Parse the last segment of the path if it was made by `file_name`; else None."""
    return parse_file_name(path + _PARQUET) if path.endswith(_ENDING) else None
