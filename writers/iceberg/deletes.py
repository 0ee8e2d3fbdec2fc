"""Names of delete files, which clean-up knows."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

from ...committers.contract import Batch
from ..parquet.file_names import FileNames

_SUFFIX = "deletes"


def name_deletes(batch: Batch) -> Iterator[str]:
    """See `NameDeletes`."""
    names = FileNames(batch.stream.query_id, uuid.uuid4().hex, batch.batch_id, partition=0, attempt=0)
    return (str(names.name(number, _SUFFIX)) for number in itertools.count())
