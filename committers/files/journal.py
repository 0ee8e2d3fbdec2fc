"""The journal of a query: its last batch and the files of that batch. Replacing it is the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

from ..cleaning.deletion import is_relative
from ..contract import Token
from .partitions import NewPartitions
from .staged import StagedFiles, upload_of


@dataclass(frozen=True, slots=True)
class Journal:
    token: Token
    files: StagedFiles
    is_published: bool = False
    """True: all files are visible, so that their owner may delete them again."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """Content by path; see `Markers`. They are written once all files are visible."""
    partitions: NewPartitions | None = None
    """They are added to the catalog once the markers are written."""

    def encode(self) -> bytes:
        content = {
            "batch_id": self.token.batch_id,
            "digest": self.token.digest,
            "files": list(self.files),
            "published": self.is_published,
        }
        uploads = {path: astuple(upload) for path, upload in self.files.items() if upload is not None}
        catalog = {} if self.partitions is None else self.partitions.encode()
        more = {"uploads": uploads, "markers": dict(self.markers), "catalog": catalog}
        return json.dumps({**content, **{name: value for name, value in more.items() if value}}).encode()

    @classmethod
    def decode(cls, content: bytes) -> Journal:
        """
        Raises:
            ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError: it is not a
                journal, or it names a path that is not below the folder.
        """
        fields = json.loads(content)
        token = Token(int(fields["batch_id"]), str(fields["digest"]))
        uploads = {path: upload_of(*upload) for path, upload in fields.get("uploads", {}).items()}
        files = {path: uploads.get(path) for path in map(str, fields["files"])}
        partitions = NewPartitions.decode(fields["catalog"]) if "catalog" in fields else None
        markers = {path: str(content) for path, content in fields.get("markers", {}).items()}
        folders = () if partitions is None else [one.folder for one in partitions.partitions]
        outside = [path for path in (*files, *markers, *folders) if not is_relative(path)]
        if outside:
            raise ValueError(f"it names {outside[0]!r}, which is not a path below the folder")
        return cls(token, files, bool(fields["published"]), markers, partitions)
