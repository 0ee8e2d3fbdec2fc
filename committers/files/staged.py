"""The files of a batch that is not committed. Executors import it: standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ..contract import DataFile

UPLOADS_MAX = 16
"""Requests to the object store at a time."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload with all its parts, which is not completed: no reader sees an object."""

    upload_id: str
    """On S3 the id of the multipart upload; on Azure the nonce."""
    nonce: str
    """In the metadata of the object: it tells this upload's object from any other."""
    parts: tuple[str, ...]
    """ETags on S3, block ids on Azure, in the order of the parts."""


@dataclass(frozen=True, slots=True)
class UploadedFile(DataFile):
    """A data file in an object store."""

    upload: Upload | None = None


StagedFiles: TypeAlias = Mapping[str, "Upload | None"]
"""Paths relative to the table; in an object store with their uploads."""


def staged_files(files: Iterable[DataFile]) -> dict[str, Upload | None]:
    return {file.path: file.upload if isinstance(file, UploadedFile) else None for file in files}


def upload_of(upload_id: object, nonce: object, parts: object) -> Upload:
    """Return the upload with these fields, as decoded from JSON.

    Raises:
        TypeError: a field is invalid.
    """
    if not isinstance(upload_id, str) or not isinstance(nonce, str) or not isinstance(parts, list):
        raise TypeError("invalid upload of a file")
    if not upload_id or not nonce or not parts:
        raise ValueError("incomplete upload of a file")
    return Upload(upload_id, nonce, tuple(map(str, parts)))
