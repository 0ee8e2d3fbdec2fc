"""Dry runs: the checks of a plan, without anything that the plan would create or change.

`penstock check` plans a batch in a dry run. What creates a table, or changes one before the first batch, asks
here first. Runs on the driver and in commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_in_dry_run: ContextVar[bool] = ContextVar("penstock_dry_run", default=False)


class NotCreatedError(BaseException):
    """A dry run has arrived where the plan would create the table. It ends there.

    No `Exception`: what handles the errors of a library must not take it for one.

    Args:
        is_new: False: it exists, and the plan would upgrade it
    """

    def __init__(self, what: str, *, is_new: bool = True) -> None:
        super().__init__(what)
        self.is_new = is_new


@contextmanager
def dry_run() -> Iterator[None]:
    """Plan without changes in the block. Only in this thread.

    Raises:
        NotCreatedError: the table does not exist, and the plan would create it.
    """
    token = _in_dry_run.set(True)
    try:
        yield
    finally:
        _in_dry_run.reset(token)


def in_dry_run() -> bool:
    """Return True if nothing may be created or changed."""
    return _in_dry_run.get()


def before_creating(what: str, *, is_new: bool = True) -> None:
    """Call this where a plan creates a table, after the checks that need no table.

    Args:
        what: such as `Delta table /lake/events`
        is_new: see `NotCreatedError`

    Raises:
        NotCreatedError: this is a dry run.
    """
    if in_dry_run():
        raise NotCreatedError(what, is_new=is_new)
