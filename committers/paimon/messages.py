"""The commit messages of pypaimon's writer, as entries of a manifest.

An entry is one data file; its statistics are the message that adds it, in the binary format of Paimon's Java
`CommitMessageSerializer`, version 14, as Base64. Reading it creates no objects of foreign classes, as pickle
would.
"""

from __future__ import annotations

import base64
import struct
from typing import Any

from ..changes.key_files import data_files
from ..contract import Changes
from ..errors import ManifestCorruptError
from ..file_tables.manifest import LakeManifest


def messages_of(table: Any, content: LakeManifest, what: str) -> list[Any]:
    """Return the messages that add the data files of a manifest, in their order.

    Args:
        table: of pypaimon
        what: names the batch in messages

    Raises:
        ManifestCorruptError: an entry is not a message that adds this file.
    """
    from pypaimon.write.commit_message_serializer import deserialize_commit_message

    messages = []
    files = data_files(content.files) if isinstance(content.mode, Changes) else content.files
    for file in files:
        try:
            message = deserialize_commit_message(
                base64.b64decode(file.statistics, validate=True),
                table.partition_keys_fields,
                table.trimmed_primary_keys_fields,
            )
            (added,) = message.new_files
        except (ValueError, TypeError, IndexError, KeyError, struct.error) as error:
            raise _corrupt(file.path, what, repr(error)) from error
        only_adds = message.is_empty() is False and _is_plain(message)
        if not only_adds or (added.file_name, added.row_count) != (file.path.rpartition("/")[2], file.rows):
            raise _corrupt(file.path, what, "it does something else than adding the file")
        messages.append(message)
    return messages


def _is_plain(message: Any) -> bool:
    others = (
        message.deleted_files,
        message.changelog_files,
        message.index_adds,
        message.index_deletes,
        message.compact_before,
        message.compact_after,
        message.compact_changelog_files,
        message.compact_index_adds,
        message.compact_index_deletes,
    )
    return not any(others) and message.check_from_snapshot is None


def _corrupt(path: str, what: str, why: str) -> ManifestCorruptError:
    return ManifestCorruptError(
        f"The manifest of {what} has no valid commit message for the file {path!r}: {why}. Nothing was "
        "committed. Restore the store from a backup, or use the version of Penstock that prepared the batch."
    )
