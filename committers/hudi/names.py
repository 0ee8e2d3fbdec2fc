"""Where things are in a Hudi table: data files before and after their commit, and Penstock's own objects.

A reader of Hudi lists the folders of the partitions, and reads each file whose instant is completed, whether
the commit names it or not. So tasks write into a folder that no reader lists, and the commit copies the files
to their places before it completes the instant. What failed attempts have left stays where it is.
"""

from __future__ import annotations

import posixpath
import re

from ..file_tables.reserved_names import ReservedNames

META_COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)
"""The first columns of each data file, all strings."""
RESERVED = ReservedNames(
    "Hudi has columns of its own with these names, and takes rows with _hoodie_is_deleted for deletions",
    prefixes=("_hoodie_",),
)

META = ".hoodie"
OWN = f"{META}/.penstock"
STAGED = f"{OWN}/staged"
CLAIMS = f"{OWN}/claims"
RESERVATIONS = f"{OWN}/instants"
COMPLETIONS = f"{OWN}/completions"
PARTITION_METADATA = ".hoodie_partition_metadata"

_TOKEN = "0-0-0"  # noqa: S105  Hudi's name for partition, stage and attempt of a task
_NAME = re.compile(r"(?P<file_id>.+)_[0-9]+-[0-9]+-[0-9]+_(?P<instant>[0-9]{17})\.parquet")


def hudi_name(file_name: str, instant: str) -> str:
    """Return the name in Hudi's form of a file: `<file id>_<write token>_<instant>.parquet`."""
    return f"{file_name.removesuffix('.parquet').rpartition('.')[0]}_{_TOKEN}_{instant}.parquet"


def staged_path(partition: str, name: str) -> str:
    """Return where a task writes the file of a partition."""
    return posixpath.join(STAGED, partition, name)


def visible_path(staged: str) -> str:
    """Return the place of a staged file once its batch is committed."""
    return staged.removeprefix(f"{STAGED}/")


def instant_of(path: str) -> str | None:
    """Return the instant in the name of a data file; None if it has none."""
    match = _NAME.fullmatch(posixpath.basename(path))
    return None if match is None else match["instant"]


def file_id_of(path: str) -> str:
    """Return the file group of a data file."""
    return posixpath.basename(path).partition("_")[0]


def penstock_name(path: str) -> str | None:
    """Return the name that `hudi_name` was given, with the codec zstd; None for files of others."""
    match = _NAME.fullmatch(posixpath.basename(path))
    return None if match is None else f"{match['file_id']}.zstd.parquet"


def query_id_of(path: str) -> str:
    """Return the query that has written a file."""
    return file_id_of(path).removeprefix("penstock-").rsplit("-", 5)[0]


def reservation(instant: str) -> str:
    """An object that reserves an instant for one batch of all streams."""
    return f"{RESERVATIONS}/{instant}"


def completion_record(instant: str) -> str:
    """An object with the time in the name of the completed instant. See `layout`."""
    return f"{COMPLETIONS}/{instant}"


def claims_folder(query_id: str) -> str:
    """The folder of a query's claims. See `claims`."""
    return f"{CLAIMS}/{query_id}"


def markers_folder(instant: str) -> str:
    """The folder of an instant's markers."""
    return f"{META}/.temp/{instant}"


def marker_path(visible: str) -> str:
    """The marker with which Hudi's rollback finds a file of an instant."""
    return f"{markers_folder(str(instant_of(visible)))}/{visible}.marker.CREATE"


def heartbeat_path(instant: str) -> str:
    """The object whose age tells Hudi's writers that the instant is still worked on."""
    return f"{META}/.heartbeat/{instant}"
