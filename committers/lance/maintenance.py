"""Maintenance of a Lance table: compaction of small fragments, and deletion of old versions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from ..delta.files import delta_files
from ..errors import RetryableError
from ..texts.safe_text import get_logger
from .library import in_short, load_if_there

logger = get_logger(__name__)

VERSIONS_KEPT = timedelta(days=7)
_UNVERIFIED_KEPT = timedelta(days=7)
"""Lance's clean-up deletes data files that no version lists once they are this old. This is fixed."""
_MARGIN = timedelta(days=1)
"""For the duration of a clean-up and for differences between clocks."""

_ROWS_MAX = 1024 * 1024


def compact(table_uri: str, storage_options: Mapping[str, str], target_bytes: int) -> str:
    """Merge neighbouring small fragments; return what was done.

    The commit of a batch during the compaction wins: the compaction is lost, and the next run tries again.

    Raises:
        RetryableError: nothing was changed.
    """
    table = load_if_there(table_uri, storage_options)
    if table is None:
        return ""
    rows, size_bytes = 0, 0
    for fragment in table.get_fragments():
        rows += fragment.metadata.physical_rows
        size_bytes += sum(file.file_size_bytes or 0 for file in fragment.metadata.files)
    if not rows:
        return ""
    target_rows = _power_of_two(min(_ROWS_MAX, target_bytes * rows // max(size_bytes, 1)))
    try:
        done = table.optimize.compact_files(target_rows_per_fragment=target_rows)
    except Exception as error:
        raise RetryableError(
            f"The Lance table {table_uri} could not be compacted: {in_short(error)}. Nothing was changed. "
            "The next run tries again."
        ) from error
    if not done.fragments_removed:
        return ""
    return f"compacted {done.fragments_removed:,} fragments to {done.fragments_added:,}"


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not larger, at least 1.

    The mean size of a row changes a little all the time. Full fragments must not become small ones by that.
    """
    return 1 << max(number.bit_length() - 1, 0)


def clean_up(
    table_uri: str, storage_options: Mapping[str, str], now: datetime, pending: Collection[str]
) -> str:
    """Delete versions older than `VERSIONS_KEPT`, except tagged ones; return what was done.

    Lance's clean-up also deletes data files that no version lists, once they are 7 days old. So nothing is
    done while a prepared batch has files that are almost as old.

    Args:
        pending: base names of files in manifests that are not committed yet

    Raises:
        RetryableError: the table cannot be read or written now.
    """
    table = load_if_there(table_uri, storage_options)
    if table is None:
        return ""
    oldest = now - (_UNVERIFIED_KEPT - _MARGIN)
    for path, _, modified_at in delta_files(table_uri, storage_options).walk():
        if modified_at < oldest and path.rpartition("/")[2] in pending:
            logger.warning(
                "Old versions of the Lance table %s are kept: Lance's clean-up would delete the file %s of a "
                "batch that is not delivered yet. Deliver it: penstock deliver --once",
                table_uri,
                path,
            )
            return ""
    try:
        done = table.cleanup_old_versions(VERSIONS_KEPT, error_if_tagged_old_versions=False)
    except Exception as error:
        raise RetryableError(
            f"Old versions of the Lance table {table_uri} could not be deleted: {in_short(error)}. The next "
            "run tries again."
        ) from error
    return f"deleted {done.old_versions:,} old versions" if done.old_versions else ""
