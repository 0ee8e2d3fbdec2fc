"""The blobs and the uncommitted blocks below a folder of a container on Azure, through Microsoft's client.

Also for accounts with a hierarchical namespace (Data Lake Storage): their Blob endpoint takes the same
requests. `obstore` and the Delta library do not show the ids of blocks. Here one process uploads the blocks
of a blob, and another one commits them. It needs the package azure-storage-blob.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import requests
from azure.core import MatchConditions
from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import (
    BlobBlock,
    BlobClient,
    BlobServiceClient,
    BlockState,
    ContainerClient,
    ExponentialRetry,
    StorageErrorCode,
)
from requests.adapters import HTTPAdapter

from ..error_causes import retryable
from ..errors import NEXT_TRY, AccessRefusedError, ConfigurationError
from ..redirects import is_redirect, redirect_message
from ..texts.safe_text import one_line
from .azure_account import AzureAccount, azure_account
from .object_store import ConditionError, StoredObject
from .staged import UPLOADS_MAX, Upload

T = TypeVar("T")

NONCE = "penstock_nonce"
"""Key in a blob's metadata. Azure takes letters, digits and `_`."""
_BLOB_BYTES_MAX = 4 * 1024**3
"""A journal is written by one request up to this size."""


class Container:
    """See `ObjectStore`. An upload is the uncommitted blocks of its blob; its id is the nonce.

    No request deletes only uncommitted blocks: a blob with no or with other content would have to become
    visible first. Azure deletes them after 7 days.
    """

    why_missing: ClassVar[str] = "its uncommitted blocks no longer exist: Azure deletes them after 7 days"
    conditions: ClassVar[Mapping[str, str]] = {
        "create": "If-None-Match of Put Blob",
        "replace": "If-Match of Put Blob",
        "complete": "If-None-Match of Put Block List",
    }

    def __init__(self, client: ContainerClient, uri: str, prefix: str) -> None:
        self._client = client
        self._uri = uri
        self._prefix = prefix

    @property
    def root(self) -> str:
        return str(self._client.primary_endpoint)

    def address(self, path: str) -> str:
        return f"{self._uri}/{path}"

    # Objects --------------------------------------------------------------------------------------

    def get(self, path: str) -> StoredObject | None:
        def download(blob: BlobClient) -> StoredObject:
            stream = blob.download_blob()
            return StoredObject(stream.readall(), stream.properties.etag)

        return self._found(path, download)

    def put(self, path: str, content: bytes) -> str:
        return self._put(path, content)

    def create(self, path: str, content: bytes) -> str:
        return self._put(path, content, match_condition=MatchConditions.IfMissing)

    def replace(self, path: str, content: bytes, etag: str) -> str:
        return self._put(path, content, match_condition=MatchConditions.IfNotModified, etag=etag)

    def remove(self, path: str) -> None:
        with self._errors("could not be removed", path), suppress(ResourceNotFoundError):
            self._blob(path).delete_blob()

    def nonce(self, path: str) -> str | None:
        metadata = self._found(path, lambda blob: blob.get_blob_properties().metadata)
        if metadata is None:
            return None
        return {name.lower(): value for name, value in metadata.items()}.get(NONCE, "")

    def paths(self, prefix: str = "") -> Iterator[str]:
        with self._errors("could not be listed", prefix):
            for name in self._client.list_blob_names(name_starts_with=f"{self._prefix}/{prefix}"):
                yield name.removeprefix(f"{self._prefix}/")

    # Uploads --------------------------------------------------------------------------------------

    def create_upload(self, path: str, nonce: str) -> str:
        return nonce

    def upload_part(self, path: str, upload_id: str, number: int, content: bytes) -> str:
        block_id = f"{upload_id}-{number:05}"  # all ids of a blob have the same length
        with self._errors("could not be uploaded", path):
            self._blob(path).stage_block(block_id, content)
        return block_id

    def complete(self, path: str, upload: Upload) -> None:
        blocks = [BlobBlock(block_id, BlockState.UNCOMMITTED) for block_id in upload.parts]
        with self._errors("could not be completed", path):
            self._blob(path).commit_block_list(
                blocks, metadata={NONCE: upload.nonce}, match_condition=MatchConditions.IfMissing
            )

    def has_upload(self, path: str, upload: Upload) -> bool:
        found = self._found(path, lambda blob: blob.get_block_list("uncommitted")[1])
        return set(upload.parts) <= {block.id for block in found or ()}

    def abort(self, path: str, upload_id: str) -> bool:
        return False

    def uploads(self) -> Iterator[tuple[str, str, datetime]]:
        return iter(())

    # Requests -------------------------------------------------------------------------------------

    def _blob(self, path: str) -> BlobClient:
        return self._client.get_blob_client(f"{self._prefix}/{path}")

    def _put(self, path: str, content: bytes, **condition: Any) -> str:
        with self._errors("could not be written", path):
            return str(self._blob(path).upload_blob(content, overwrite=True, **condition)["etag"])

    def _found(self, path: str, read: Callable[[BlobClient], T]) -> T | None:
        """Return what is read of a blob; None if there is no blob."""
        with self._errors("could not be read", path):
            try:
                return read(self._blob(path))
            except ResourceNotFoundError as error:
                if getattr(error, "error_code", None) == StorageErrorCode.CONTAINER_NOT_FOUND:
                    raise
                return None

    @contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        try:
            yield
        except AzureError as error:
            message = f"{self.address(path)} {what}: {one_line(error)}"
            status = getattr(error, "status_code", None) or 0
            if status in (409, 412):
                raise ConditionError(message) from None
            if is_redirect(status):
                headers = getattr(getattr(error, "response", None), "headers", {})
                raise AccessRefusedError(f"{message}. {redirect_message(headers)}") from None
            raise retryable(error)(f"{message}. {NEXT_TRY}") from None


def open_container(uri: str, storage_options: Mapping[str, str]) -> Container:
    """Open `abfss://container@account.dfs.core.windows.net/prefix` or `az://container/prefix`. Runs anywhere.

    Args:
        storage_options: named as in the Delta library; what is missing comes from the environment

    Raises:
        ConfigurationError: the URL and the options name no account, or an option is invalid.
    """
    account, container, prefix = azure_account(uri, storage_options)
    client = _client(account, os.getpid()).get_container_client(container)
    return Container(client, uri, prefix)


@lru_cache(maxsize=16)
def _client(account: AzureAccount, _process: int) -> BlobServiceClient:
    """One client per process and account, so that connections stay open between batches."""
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=2 * UPLOADS_MAX))
    try:
        return BlobServiceClient(
            account.endpoint,
            account.credential(),
            transport=RequestsTransport(session=session, connection_timeout=10, read_timeout=60),
            retry_policy=ExponentialRetry(initial_backoff=0, increment_base=2, random_jitter_range=1),
            max_single_put_size=_BLOB_BYTES_MAX,
            permit_redirects=False,
        )
    except ValueError as error:  # an invalid endpoint
        raise ConfigurationError(f"The client of Azure cannot be opened: {error}.") from None
