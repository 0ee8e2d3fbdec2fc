"""A worker process that rewrites groups of data files for its parent.

`multiprocessing` is not used: its new processes run the script that started Spark again, unless that is
guarded. Requests and results are pickled and sent through pipes, so that no secret is visible in a list of
processes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TypeAlias, cast

from ...committers.contract import DataFile
from ...committers.errors import PenstockError, RetryableError
from .. import child_process
from .compaction import RewriteGroup, delete_files, rewrite_group
from .file_names import FileNames
from .write_config import WriteConfig

RewriteResult: TypeAlias = "tuple[DataFile, ...] | PenstockError"

_MODULE = "penstock.writers.parquet.compaction_process"


def try_rewrite(config: WriteConfig, names: FileNames, group: RewriteGroup) -> RewriteResult:
    """The new files, or the error as a value that can be sent to another process."""
    try:
        return rewrite_group(config, names, group)
    except PenstockError as error:
        return error
    except Exception as error:  # noqa: BLE001  of any library; it may not be picklable
        return RetryableError(
            f"{len(group.sources)} small data files could not be compacted ({names}): "
            f"{type(error).__name__}: {error}. Nothing was committed, and the new files were deleted."
        )


class RewriteProcess:
    """One worker, for one thread at a time. Leaving the context kills the process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603  this very module
            child_process.command(_MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_process.environment(),
            start_new_session=True,  # Ctrl-C only stops the parent, which ends its workers
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> RewriteProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def rewrite(self, config: WriteConfig, names: FileNames, group: RewriteGroup) -> tuple[DataFile, ...]:
        """See `rewrite_group`.

        Raises:
            RetryableError: also if the process has died; then its files are found by clean-up.
        """
        requests, outcomes = self._process.stdin, self._process.stdout
        assert requests is not None
        assert outcomes is not None
        try:
            pickle.dump((config, names, group), requests)
            requests.flush()
            outcome = cast("RewriteResult", pickle.load(outcomes))  # noqa: S301  from our own process
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise RetryableError(
                f"A process that compacted data files ({names}) has died with exit code "
                f"{self._process.wait()}, possibly because memory was short. Nothing was committed. The "
                "next delivery tries again. Give the delivery process more memory, or let it compact with "
                "fewer processes."
            ) from error
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome


def serve() -> None:
    """Answer requests until the input ends. Output of libraries goes to stderr."""
    outcomes = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            config, names, group = pickle.load(sys.stdin.buffer)  # noqa: S301  from our own parent
        except EOFError:
            return
        outcome = try_rewrite(config, names, group)
        try:
            pickle.dump(outcome, outcomes)
            outcomes.flush()
        except BrokenPipeError:
            if not isinstance(outcome, PenstockError):
                delete_files(config, outcome)
            return


if __name__ == "__main__":
    serve()
