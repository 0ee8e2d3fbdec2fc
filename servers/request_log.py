"""Reads the requests of a server from its log."""

from __future__ import annotations

from typing import IO


class RequestLog:
    """A log in the format of web servers, with the request line in quotes."""

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines = lines

    def methods(self, about: bytes = b"") -> list[str]:
        """Return the methods, such as "PUT", of new requests whose log line contains `about`."""
        lines = [line.decode() for line in self.read() if b" HTTP/1" in line and about in line]
        return [line.split('"')[1].split()[0].lstrip("\x1b[0123456789m") for line in lines]

    def read(self) -> list[bytes]:
        """Return the lines since the last call."""
        return self._lines.readlines()
