"""Fragments of a Lance table from the data files of a manifest."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from ..file_tables.manifest import LakeManifest
from .schema import field_ids, files_of

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

DATA = "data"
"""The folder of the data files in a table."""


def new_fragments(table: LanceDataset, content: LakeManifest) -> list[FragmentMetadata]:
    """Return one fragment for each file. The library gives them their ids."""
    from lance.fragment import DataFile, FragmentMetadata

    schema, file_version = files_of(content)
    ids = field_ids(table, schema)
    major, minor = map(int, file_version.split("."))
    return [
        FragmentMetadata(
            0,
            [
                DataFile(
                    posixpath.relpath(file.path, DATA),
                    ids,
                    list(range(len(ids))),
                    major,
                    minor,
                    file.size_bytes,
                )
            ],
            file.rows,
        )
        for file in content.files
    ]
