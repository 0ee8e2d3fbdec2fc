"""What `penstock check` asks a destination before a query starts. Both capabilities are optional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..committers.contract import Mode
from ..committers.dry_runs import NotCreatedError, dry_run

if TYPE_CHECKING:
    import pyarrow as pa

    from ..committers.probing import Probe


@runtime_checkable
class ChecksBatches(Protocol):
    """A target that can check the rows of a query before the query starts."""

    def check_batch(self, rows: pa.Schema, mode: Mode) -> bool:
        """Make the checks of `plan_batch`. Create and change nothing, and send no rows.

        Returns:
            False if there is no table yet: the first batch creates it

        Raises:
            PenstockError: as `plan_batch`
        """
        ...


@runtime_checkable
class ProbesStorage(Protocol):
    """A destination that writes files: a check writes a small one in each of their places, and deletes it."""

    def probes(self) -> Sequence[Probe]:
        """Return the probe of each place.

        Raises:
            PenstockError: the places cannot be found out, for example because the catalog does not answer.
        """
        ...


class ChecksByDryRun:
    """`ChecksBatches` for targets whose `plan_batch` changes nothing in a dry run, see `dry_runs`."""

    __slots__ = ()

    def check_batch(self, rows: pa.Schema, mode: Mode) -> bool:
        """See `ChecksBatches`."""
        target: Any = self
        with dry_run():
            try:
                target.plan_batch(rows, mode, 0)
            except NotCreatedError:
                return False
        return True
