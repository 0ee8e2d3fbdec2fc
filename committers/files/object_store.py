"""The object store of a folder of files: what differs between S3 and Azure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol

from .staged import Upload


class ConditionError(Exception):
    """The object is not as a conditional request expects it. Or it is, because a repeated request of this
    process has changed it before.
    """


@dataclass(frozen=True, slots=True)
class StoredObject:
    content: bytes
    etag: str


class ObjectStore(Protocol):
    """The objects and the uploads below a folder. Paths are relative to it. Threads may share it.

    An upload consists of parts and is no object: no reader sees it. One process begins it, and another one
    completes it. Runs anywhere.

    All methods raise RetryableError if the storage fails, also if the request may have been executed.
    """

    why_missing: ClassVar[str]
    """Why an upload may be missing, for messages."""
    conditions: ClassVar[Mapping[str, str]]
    """What the storage calls the conditional requests `create`, `replace` and `complete`, for messages."""

    @property
    def root(self) -> str:
        """The URL of the bucket or container."""
        ...

    def address(self, path: str) -> str: ...

    # Objects --------------------------------------------------------------------------------------

    def get(self, path: str) -> StoredObject | None: ...

    def put(self, path: str, content: bytes) -> str:
        """Create or replace an object and return its ETag."""
        ...

    def create(self, path: str, content: bytes) -> str:
        """Create an object and return its ETag. Raises ConditionError if there is one."""
        ...

    def replace(self, path: str, content: bytes, etag: str) -> str:
        """Replace an object and return its ETag. Raises ConditionError if it has another ETag."""
        ...

    def remove(self, path: str) -> None:
        """Delete an object. A missing one is not an error."""
        ...

    def nonce(self, path: str) -> str | None:
        """Return the nonce of an object, empty if it has none; None if there is no object."""
        ...

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Paths that begin with the prefix."""
        ...

    # Uploads --------------------------------------------------------------------------------------

    def create_upload(self, path: str, nonce: str) -> str:
        """Begin an upload and return its id."""
        ...

    def upload_part(self, path: str, upload_id: str, number: int, content: bytes) -> str:
        """Upload a part and return what `Upload.parts` has for it. The first part is number 1."""
        ...

    def complete(self, path: str, upload: Upload) -> None:
        """Make the object of an upload visible, with the nonce. Raises ConditionError if there is an
        object.
        """
        ...

    def has_upload(self, path: str, upload: Upload) -> bool:
        """Return True if the upload is there, and neither completed nor aborted."""
        ...

    def abort(self, path: str, upload_id: str) -> bool:
        """Delete an upload. Return False if there is none, or if the storage deletes it by itself later."""
        ...

    def uploads(self) -> Iterator[tuple[str, str, datetime]]:
        """Path, id and start of each upload that can be aborted."""
        ...
