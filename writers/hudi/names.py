"""Parses the names of data files of Hudi tables."""

from __future__ import annotations

from ...committers.changes.key_files import is_key_path
from ...committers.hudi.names import attempt_of, penstock_name
from ..parquet.file_names import FileName, parse_file_name


def parse_name(path: str) -> FileName | None:
    """Parse the name of a file that Penstock has written for a Hudi table; None for others."""
    name = path if is_key_path(path) else attempt_of(path) or penstock_name(path)
    return None if name is None else parse_file_name(name)
