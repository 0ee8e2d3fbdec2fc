"""New data files on an object store, uploaded in the background and in parallel."""

from __future__ import annotations

import contextlib
import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pyarrow as pa
from pyarrow.fs import FileSystem, LocalFileSystem

from .new_files import LocalFiles, NewFiles, exists_already
from .objects import Objects, Parts, objects_of

PART_BYTES = 10 * 1024 * 1024
"""Part size. A smaller file is uploaded whole once it is closed; a larger one in parts of this size."""

UPLOADS_MAX = 16
"""Uploads at a time. They spend most of their time waiting for responses."""


def open_new_files(filesystem: FileSystem, root: str) -> NewFiles:
    """Return what creates the files of a task attempt below a path of a file system."""
    return LocalFiles(root) if isinstance(filesystem, LocalFileSystem) else Uploads(filesystem, root)


class Uploads:
    """See `NewFiles`.

    A file is kept in memory until it is closed or reaches the part size. A small file takes one or two
    requests, and many are sent in parallel. Of a large file, one part is being sent while the next one is
    filled.
    """

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self._objects = objects_of(filesystem, root)
        self._threads = ThreadPoolExecutor(UPLOADS_MAX, "penstock-upload")
        self._files: list[_Upload] = []
        self._on_their_way: deque[tuple[Future[None], int]] = deque()
        self.on_their_way_bytes = 0

    def open(self, path: str) -> pa.NativeFile:
        upload = _Upload(self._objects, path, self._start)
        self._files.append(upload)
        return pa.PythonFile(upload, mode="w")

    def waiting_bytes(self, size_bytes: int) -> int:
        """For a large file, the client keeps a part in memory too."""
        return size_bytes if size_bytes < PART_BYTES else 2 * PART_BYTES

    def wait_for_one(self) -> None:
        if self._on_their_way:
            future, size_bytes = self._on_their_way.popleft()
            self.on_their_way_bytes -= size_bytes
            future.result()

    def finish(self) -> None:
        """An object is durable when the object store confirms it."""
        while self._on_their_way:
            self.wait_for_one()
        self._threads.shutdown()

    def delete_all(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        with ThreadPoolExecutor(UPLOADS_MAX, "penstock-upload") as threads:
            list(threads.map(_Upload.abort_upload, self._files))

    def _start(self, send: Callable[[], None], size_bytes: int) -> Future[None]:
        future = self._threads.submit(send)
        self._on_their_way.append((future, size_bytes))
        self.on_their_way_bytes += size_bytes
        return future


class _Upload:
    """The file object that Arrow writes to."""

    def __init__(
        self, objects: Objects, path: str, start: Callable[[Callable[[], None], int], Future[None]]
    ) -> None:
        self._objects = objects
        self._path = path
        self._start = start
        self._content = io.BytesIO()
        self._on_its_way: Future[None] | None = None
        self._parts: Parts | None = None
        self._is_ours = self._is_taken_back = False
        self.closed = False

    def write(self, data: bytes) -> None:
        if not self._is_taken_back:
            self._content.write(data)
            if self._content.tell() >= PART_BYTES:
                self._send(self._send_part)

    def flush(self) -> None:
        """Does nothing: it would not make the data durable earlier."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if not self._is_taken_back:
                self._send(self._send_last_part if self._on_its_way else self._send_whole)

    def abort_upload(self) -> None:
        """Delete the uploaded file once it is no longer being sent. Never raises.

        Deletes only what certainly belongs to this upload: the result of a failed one stays, as an orphan.
        """
        self._is_taken_back = True
        if self._parts is not None:
            with contextlib.suppress(Exception):
                self._parts.close()  # otherwise the parts would stay, and no listing shows them
        if self._is_ours:
            with contextlib.suppress(Exception):
                self._objects.delete(self._path)

    def _send(self, send: Callable[[io.BytesIO], None]) -> None:
        """Send the collected data once the previous part has arrived."""
        if self._on_its_way is not None:
            self._on_its_way.result()
        content, self._content = self._content, io.BytesIO()
        self._on_its_way = self._start(partial(send, content), content.tell())

    # One at a time, in any thread.

    def _send_whole(self, content: io.BytesIO) -> None:
        try:
            self._is_ours = self._objects.create(self._path, content.getbuffer())
        except FileExistsError:
            raise exists_already(self._path) from None

    def _send_part(self, content: io.BytesIO) -> None:
        if self._parts is None:
            try:
                self._parts = self._objects.create_in_parts(self._path)
            except FileExistsError:
                raise exists_already(self._path) from None
            self._is_ours = True
        self._parts.write(content.getvalue())

    def _send_last_part(self, content: io.BytesIO) -> None:
        self._send_part(content)
        if self._parts is not None:
            self._parts.close()
