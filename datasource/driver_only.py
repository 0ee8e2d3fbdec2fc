"""Passes an object from one process of the driver to another, past the executors."""

from __future__ import annotations

import os
import pickle
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..committers.errors import PenstockError


@dataclass(frozen=True, slots=True)
class DriverOnly:
    """One half of a pickled object; a file on the driver has the other half. Each half alone is random bytes.

    This half may go anywhere and may be pickled any number of times. Both halves are on the driver's machine
    only, and there only its user can read the file. A file that stays behind after a crash reveals nothing.
    """

    path: str
    _half: bytes = field(repr=False)

    @classmethod
    def keep(cls, value: Any) -> DriverOnly:
        """Driver: write the file, into the directory for temporary files."""
        plain = pickle.dumps(value)
        half = secrets.token_bytes(len(plain))
        with tempfile.NamedTemporaryFile(prefix="penstock-write-", delete=False) as file:  # mode 0600
            file.write(_combined(plain, half))
        return cls(file.name, half)

    def get(self) -> Any:
        """Driver: the object.

        Raises:
            PenstockError: the file is not on this machine, not any more, or another user's.
        """
        try:
            with Path(self.path).open("rb") as file:
                is_own = os.fstat(file.fileno()).st_uid == os.getuid()
                other_half = file.read()
        except OSError:
            is_own, other_half = False, b""
        if not is_own or len(other_half) != len(self._half):
            raise PenstockError(
                f"The file {self.path}, which holds the options of this write for its commit, cannot be read "
                "here. Nothing was committed. The driver plans and commits a write on one machine: run the "
                "write again, with a TMPDIR that is not cleaned up meanwhile."
            )
        return pickle.loads(_combined(other_half, self._half))  # noqa: S301  our own, of this user

    def forget(self) -> None:
        Path(self.path).unlink(missing_ok=True)


def _combined(one: bytes, other: bytes) -> bytes:
    """The bitwise exclusive or: a one-time pad."""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
