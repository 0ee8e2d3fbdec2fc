"""What a server was asked, from the log that it writes."""

from __future__ import annotations

from typing import IO


class RequestLog:
    """Of lines with the request's own first line in quotes, as web servers write them."""

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines = lines

    def methods(self, about: bytes = b"") -> list[str]:
        """Of the requests since the last time, such as "PUT", whose first lines have these words."""
        lines = [line.decode() for line in self.read() if b" HTTP/1" in line and about in line]
        return [line.split('"')[1].split()[0].lstrip("\x1b[0123456789m") for line in lines]

    def read(self) -> list[bytes]:
        """The lines since the last time."""
        return self._lines.readlines()
