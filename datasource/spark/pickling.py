"""Pickling by Spark: what goes from the planner process to executors and to the commit process.

Spark creates, pickles and unpickles the objects of a Python data source in three kinds of process, and does
not tell which one it is:

| object | created in | pickled for | copy |
|---|---|---|---|
| data source | planner process | - | |
| | commit process | the same process | does not plan: `PlansUntilPickled` |
| stream writer | planner process | executors | has the plan and no sink: `NotPickled` |
| | commit process, without a plan | - | |
| batch writer | planner process | executors, commit process | has the plan and half a sink: `DriverOnly` |
| in `foreachBatch` | planner process | executors, commit process | has the plan and half of the options |
| `CommittableMessage` | executors | commit process | has what only the plan knew of the batch |

The sink commits, and may contain the catalog's credentials, so executors never get it. The plan contains what
tasks need to access files.
"""

from __future__ import annotations

import os
import pickle
import secrets
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from ...committers.errors import PenstockError

T = TypeVar("T")


class PlansUntilPickled:
    """An instance that was never pickled plans the batch. A copy commits it, and must not plan it again."""

    options: MutableMapping[str, str]
    _plans = True

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_plans": False}


class NotPickled(Generic[T]):
    """Holds an object that stays in its process: copies are empty."""

    def __init__(self, *value: T) -> None:
        self._value = value

    def get(self) -> T:
        if not self._value:
            raise PenstockError("Spark commits with a stream writer that it has shipped to executors.")
        return self._value[0]

    def __reduce__(self) -> tuple[type[NotPickled[T]], tuple[()]]:
        return type(self), ()


class DriverOnly(Generic[T]):
    """One half of a pickled object. A file on the driver has the other half. Each half alone is random bytes.

    This half may go anywhere and be pickled any number of times. Both halves exist only on the driver's
    machine, where only its user can read the file. A file that is left after a crash reveals nothing.
    """

    def __init__(self, value: T) -> None:
        """Driver: write the file, in the directory for temporary files."""
        plain = pickle.dumps(value)
        self._half = secrets.token_bytes(len(plain))
        with tempfile.NamedTemporaryFile(prefix="penstock-write-", delete=False) as file:  # mode 0600
            file.write(_combined(plain, self._half))
        self.path = file.name

    def get(self) -> T:
        """Driver: return the object.

        Raises:
            PenstockError: the file is not on this machine, was deleted, or belongs to another user.
        """
        try:
            with Path(self.path).open("rb") as file:
                is_own = os.fstat(file.fileno()).st_uid == os.getuid()
                other_half = file.read()
        except OSError:
            is_own, other_half = False, b""
        if not is_own or len(other_half) != len(self._half):
            raise PenstockError(
                f"The file {self.path}, which has the options of this write for its commit, cannot be read. "
                "Nothing was committed. The driver must plan and commit a write on the same machine. Run the "
                "write again, with a TMPDIR that is not cleaned up in the meantime."
            )
        value: T = pickle.loads(_combined(other_half, self._half))  # noqa: S301  our own file, of this user
        return value

    def forget(self) -> None:
        Path(self.path).unlink(missing_ok=True)


def _combined(one: bytes, other: bytes) -> bytes:
    """Return the bitwise exclusive or: a one-time pad."""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
