"""The objects and the multipart uploads below a prefix of a bucket on S3, through botocore.

`obstore` and the Delta library do not show the id of an upload. Here one process begins an upload, and
another completes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar

from ..error_causes import retryable
from ..errors import NEXT_TRY, AccessRefusedError, ConfigurationError
from ..redirects import is_redirect, redirect_message
from .object_store import ConditionError, StoredObject
from .staged import UPLOADS_MAX, Upload

NONCE = "penstock-nonce"
"""Key in an object's metadata."""

_CLIENT_ARGUMENTS = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_SESSION_TOKEN": "aws_session_token",
    "AWS_REGION": "region_name",
    "AWS_DEFAULT_REGION": "region_name",
    "AWS_ENDPOINT": "endpoint_url",
    "AWS_ENDPOINT_URL": "endpoint_url",
    "AWS_ENDPOINT_URL_S3": "endpoint_url",
}
"""Options as in the Delta library, by increasing priority, and their names in botocore."""
_FROM_ENVIRONMENT = ("AWS_REGION", "AWS_ENDPOINT")
"""Variables that botocore does not read by itself."""
_VIRTUAL_HOSTED = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"


class Bucket:
    """See `ObjectStore`."""

    why_missing: ClassVar[str] = (
        "its multipart upload no longer exists: a lifecycle rule of the bucket or another process has "
        "aborted it"
    )
    conditions: ClassVar[Mapping[str, str]] = {
        "create": "If-None-Match of PutObject",
        "replace": "If-Match of PutObject",
        "complete": "If-None-Match of CompleteMultipartUpload",
    }

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    @property
    def root(self) -> str:
        return f"{self._client.meta.endpoint_url}/{self._bucket}"

    def address(self, path: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}/{path}"

    # Objects --------------------------------------------------------------------------------------

    def get(self, path: str) -> StoredObject | None:
        with self._errors("could not be read", path):
            try:
                found = self._client.get_object(**self._object(path))
            except self._client.exceptions.NoSuchKey:
                return None
            return StoredObject(found["Body"].read(), found["ETag"])

    def put(self, path: str, content: bytes) -> str:
        return self._put(path, content)

    def create(self, path: str, content: bytes) -> str:
        return self._put(path, content, IfNoneMatch="*")

    def replace(self, path: str, content: bytes, etag: str) -> str:
        return self._put(path, content, IfMatch=etag)

    def remove(self, path: str) -> None:
        with self._errors("could not be removed", path):
            self._client.delete_object(**self._object(path))

    def nonce(self, path: str) -> str | None:
        with self._errors("could not be read", path):
            try:
                found = self._client.head_object(**self._object(path))
            except self._client.exceptions.ClientError as error:
                if _status(error) == 404:
                    return None
                raise
            return str(found["Metadata"].get(NONCE, ""))

    def paths(self, prefix: str = "") -> Iterator[str]:
        for page in self._pages("list_objects_v2", prefix):
            yield from (one["Key"].removeprefix(f"{self._prefix}/") for one in page.get("Contents", ()))

    # Multipart uploads ----------------------------------------------------------------------------

    def create_upload(self, path: str, nonce: str) -> str:
        with self._errors("could not be uploaded", path):
            created = self._client.create_multipart_upload(**self._object(path), Metadata={NONCE: nonce})
            return str(created["UploadId"])

    def upload_part(self, path: str, upload_id: str, number: int, content: bytes) -> str:
        with self._errors("could not be uploaded", path):
            done = self._client.upload_part(
                **self._object(path), UploadId=upload_id, PartNumber=number, Body=content
            )
            return str(done["ETag"])

    def complete(self, path: str, upload: Upload) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(upload.parts, 1)]
        with self._errors("could not be completed", path):
            self._client.complete_multipart_upload(
                **self._object(path),
                UploadId=upload.upload_id,
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )

    def has_upload(self, path: str, upload: Upload) -> bool:
        with self._errors("could not be read", path):
            try:
                self._client.list_parts(**self._object(path), UploadId=upload.upload_id, MaxParts=1)
            except self._client.exceptions.ClientError as error:
                if _status(error) == 404:
                    return False
                raise
            return True

    def abort(self, path: str, upload_id: str) -> bool:
        with self._errors("could not be aborted", path):
            try:
                self._client.abort_multipart_upload(**self._object(path), UploadId=upload_id)
            except self._client.exceptions.NoSuchUpload:
                return False
            return True

    def uploads(self) -> Iterator[tuple[str, str, datetime]]:
        for page in self._pages("list_multipart_uploads"):
            for one in page.get("Uploads", ()):
                yield one["Key"].removeprefix(f"{self._prefix}/"), one["UploadId"], one["Initiated"]

    # Requests -------------------------------------------------------------------------------------

    def _object(self, path: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}/{path}"}

    def _put(self, path: str, content: bytes, **condition: str) -> str:
        with self._errors("could not be written", path):
            return str(self._client.put_object(**self._object(path), Body=content, **condition)["ETag"])

    def _pages(self, operation: str, prefix: str = "") -> Iterator[Mapping[str, Any]]:
        with self._errors("could not be listed", prefix):
            pages = self._client.get_paginator(operation)
            yield from pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}/{prefix}")

    @contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            if (status := _status(error)) in (409, 412):
                raise ConditionError(f"{self.address(path)} {what}: {error}") from None
            if is_redirect(status):
                headers = _metadata(error).get("HTTPHeaders", {})
                message = f"{self.address(path)} {what}: {error}. {redirect_message(headers)}"
                raise AccessRefusedError(message) from None
            raise retryable(error)(f"{self.address(path)} {what}: {error}. {NEXT_TRY}") from None


def _status(error: Any) -> int:
    """The HTTP status of an error; 0 if there was no response."""
    return int(_metadata(error).get("HTTPStatusCode", 0))


def _metadata(error: Any) -> Mapping[str, Any]:
    response = getattr(error, "response", None) or {}
    metadata: Mapping[str, Any] = response.get("ResponseMetadata", {})
    return metadata


def open_bucket(uri: str, storage_options: Mapping[str, str]) -> Bucket:
    """Open `s3://bucket/prefix`. Runs anywhere.

    Args:
        storage_options: named as in the Delta library; what is missing comes from the environment

    Raises:
        ConfigurationError: botocore is not installed, or does not accept an option.
    """
    if find_spec("botocore") is None:
        raise ConfigurationError('Plain files on S3 need botocore: pip install "penstock[files]".')
    environment = {name: os.environ[name] for name in _FROM_ENVIRONMENT if name in os.environ}
    options = {**environment, **storage_options}
    known = {name: options[name] for name in (*_CLIENT_ARGUMENTS, _VIRTUAL_HOSTED) if options.get(name)}
    bucket, _, prefix = uri.partition("://")[2].partition("/")
    return Bucket(_client(tuple(known.items()), os.getpid()), bucket, prefix)


@lru_cache(maxsize=16)
def _client(options: tuple[tuple[str, str], ...], _process: int) -> Any:
    """One client per process and options, so that connections stay open between batches."""
    from botocore.config import Config
    from botocore.session import get_session

    given = dict(options)
    is_virtual_hosted = given.pop(_VIRTUAL_HOSTED, "").lower() == "true"
    arguments = {_CLIENT_ARGUMENTS[name]: value for name, value in given.items()}
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 4},
        max_pool_connections=2 * UPLOADS_MAX,
        request_checksum_calculation="when_required",  # other servers than that of AWS do not know them
        response_checksum_validation="when_required",
        s3={} if is_virtual_hosted or "endpoint_url" not in arguments else {"addressing_style": "path"},
    )
    try:
        client = get_session().create_client("s3", config=config, **arguments)
    except ValueError as error:  # an invalid endpoint
        raise ConfigurationError(f"The client of S3 cannot be opened: {error}.") from None
    client.meta.events.register_first("needs-retry.s3", _refuse_redirect)
    return client


def _refuse_redirect(response: Any, operation: Any, **_: Any) -> None:
    """Stop botocore, which looks for the region of the bucket after a redirect, in requests that are
    redirected again, without an end. A response of S3 names the region, and botocore asks its endpoint.
    """
    from botocore.exceptions import ClientError

    if response is None:
        return
    answer, parsed = response
    if is_redirect(answer.status_code) and "x-amz-bucket-region" not in answer.headers:
        raise ClientError(parsed, operation.name)
