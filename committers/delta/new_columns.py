"""Adds the columns of a batch to a Delta table, in a commit of its own: the library's append does not."""

from __future__ import annotations

import json
from collections.abc import Sequence

from deltalake import CommitProperties, Field
from deltalake.exceptions import CommitFailedError

from .. import crash_points
from ..contract import Batch
from ..errors import NEXT_TRY, RetryableError
from ..file_tables.manifest import LakeManifest
from .library import in_short
from .plan import join_names
from .schema import fields_of
from .snapshot_cache import TableSnapshot


def add_columns(
    table: TableSnapshot, table_uri: str, batch: Batch, content: LakeManifest, names: Sequence[str]
) -> bool:
    """Add columns of the files; return False if another writer has committed the next version first.

    After a crash the new columns are NULL everywhere, and recovery of the batch finds them in the table.

    Args:
        table: the version that does not have the columns

    Raises:
        RetryableError: they could not be added; the batch was not committed.
    """
    new = [Field.from_json(json.dumps(f)) for f in fields_of(content.schema_json) if f["name"] in names]
    try:
        table.handle().alter.add_columns(new, commit_properties=CommitProperties(max_commit_retries=0))
    except CommitFailedError:
        return False
    except Exception as error:
        raise RetryableError(
            f"The columns {join_names(names)} could not be added to the Delta table {table_uri}: "
            f"{in_short(error)}. The batch was not committed. {NEXT_TRY}"
        ) from error
    crash_points.reach("evolve.done", batch.batch_id)
    return True
