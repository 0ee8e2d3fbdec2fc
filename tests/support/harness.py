"""What the harnesses of tables of files have in common."""

from __future__ import annotations

from typing import ClassVar

from penstock.testing.conformance import DestinationHarness

CRASH_POINTS = ("table.created", "write.file_open", "write.files_closed", "commit.start", "commit.landed")
"""The crash points that each built-in table reaches."""


class FileTableHarness(DestinationHarness):
    """Tasks write data files."""

    small_buffer: ClassVar = {"bufferSize": "4mb"}
