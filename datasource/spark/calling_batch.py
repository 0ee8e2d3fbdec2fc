"""The batch in whose function of `foreachBatch` a write is made.

`foreach_batch` runs in the driver program and knows it. The data source plans the write in a process that
does not, so it gets the batch as an option that is not documented: without it, the write would be a batch
write, which a replay repeats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ...committers.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from .checkpoint import RunningBatch

OPTION = "penstock.foreachbatch"
"""In lower case, as Spark passes it."""


@dataclass(frozen=True, slots=True)
class CallingBatch:
    """A batch of a streaming query, while its function runs."""

    query_id: str
    run_id: str
    """New at every start of the query."""
    batch_id: int

    def check(self, running: RunningBatch, location: str) -> None:
        """Check that the checkpoint is the one of the query.

        Args:
            running: the newest batch in the checkpoint
            location: of the checkpoint, for the message

        Raises:
            CheckpointMismatchError: it is another query's, or at another batch.
        """
        if (running.query_id, running.batch_id) == (self.query_id, self.batch_id):
            return
        raise CheckpointMismatchError(
            f"The function of foreachBatch writes batch {self.batch_id} of query {self.query_id}, but the "
            f"directory in checkpointLocation, {location!r}, is at batch {running.batch_id} of query "
            f"{running.query_id}. Nothing was written. Either the option is not the directory that Spark "
            "uses for this query: correct it, or leave it out. Or another driver runs the query on the same "
            "checkpoint: stop one of them."
        )

    def encoded(self) -> str:
        """Return the value of the option."""
        return json.dumps(asdict(self))


def calling_batch(options: Mapping[str, str]) -> tuple[CallingBatch | None, dict[str, str]]:
    """Return the batch in the options that Spark passes, None for a batch write, and the other options."""
    others = {key: value for key, value in options.items() if key.lower() != OPTION}
    given = next((value for key, value in options.items() if key.lower() == OPTION), None)
    return (None if given is None else CallingBatch(**json.loads(given))), others
