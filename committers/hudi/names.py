"""Where things are in a Hudi table: data files before and after their commit, and Penstock's own objects.

A reader of Hudi lists the folders of the partitions, and reads each file whose instant is completed, whether
the commit names it or not. So tasks write into a folder that no reader lists, and the commit copies the files
to their places before it completes the instant. What failed attempts have left stays where it is.
"""

from __future__ import annotations

import posixpath
import re

from ..file_tables.reserved_names import ReservedNames

COMMIT_TIME = "_hoodie_commit_time"
COMMIT_SEQUENCE = "_hoodie_commit_seqno"
RECORD_KEY = "_hoodie_record_key"
FILE_NAME = "_hoodie_file_name"
META_COLUMNS = (
    COMMIT_TIME,
    COMMIT_SEQUENCE,
    RECORD_KEY,
    "_hoodie_partition_path",
    FILE_NAME,
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
SLICES = f"{OWN}/slices"
"""Files that a commit of changes has written in place of others, until they are in their places."""
KEYS = f"{OWN}/keys"
"""Key files. Readers take other folders of the table for partitions."""
CHANGES = f"{OWN}/changes"
TOMBSTONES = f"{OWN}/deleted"
PARTITION_METADATA = ".hoodie_partition_metadata"

_TOKEN = "0-0-0"  # noqa: S105  Hudi's name for partition, stage and attempt of a task
_NAME = re.compile(r"(?P<file_id>.+)_[0-9]+-[0-9]+-[0-9]+_(?P<instant>[0-9]{17})\.parquet")


def hudi_name(file_name: str, instant: str) -> str:
    """Return the name in Hudi's form of a file: `<file id>_<write token>_<instant>.parquet`."""
    return f"{_stem(file_name)}_{_TOKEN}_{instant}.parquet"


def _stem(file_name: str) -> str:
    return file_name.removesuffix(".parquet").rpartition(".")[0]


def staged_path(partition: str, name: str) -> str:
    """Return where a task writes the file of a partition."""
    return posixpath.join(STAGED, partition, name)


def visible_path(staged: str) -> str:
    """Return the place of a staged file once its batch is committed."""
    if staged.startswith(f"{SLICES}/"):
        return staged.removeprefix(f"{SLICES}/").partition("/")[2]
    return staged.removeprefix(f"{STAGED}/")


def next_slice(path: str, instant: str, attempt: int, number: int) -> str:
    """Return the place of the next file of a file group.

    Args:
        attempt: a random number
        number: of the file in its commit
    """
    name = f"{file_id_of(path)}_{number}-{attempt}-0_{instant}.parquet"
    return posixpath.join(posixpath.dirname(path), name)


def slice_path(attempt: str, visible: str) -> str:
    """Return where a commit writes a file in place of another one.

    Args:
        attempt: the name that `hudi_name` takes; tells whose file it is, as its own name does not
        visible: its place once the batch is committed
    """
    return posixpath.join(SLICES, _stem(attempt), visible)


def attempt_of(path: str) -> str | None:
    """Return the attempt of a file that `slice_path` has named, with the codec zstd; None for others."""
    folder = path.removeprefix(f"{SLICES}/").partition("/")[0]
    return f"{folder}.zstd.parquet" if path.startswith(f"{SLICES}/") else None


def keys_folder(instant: str) -> str:
    """The folder of the key files of batches that were planned with the instant."""
    return f"{KEYS}/{instant}"


def own_folder_of(path: str) -> str | None:
    """Return the folder of a file that has only files of its batch; None if others may write there."""
    if path.startswith(f"{SLICES}/"):
        return "/".join(path.split("/")[: SLICES.count("/") + 2])
    folder = posixpath.dirname(path)
    return folder if posixpath.dirname(folder) == KEYS else None


def planned_instant_of(path: str) -> str | None:
    """Return the instant that the batch of a file was planned with, for files of tasks."""
    folder, instant = posixpath.split(posixpath.dirname(path))
    return instant if folder == KEYS else instant_of(path)


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


def marker_path(staged: str) -> str:
    """The marker with which Hudi's rollback finds a file of an instant in its place."""
    visible, kind = visible_path(staged), "CREATE" if attempt_of(staged) is None else "MERGE"
    return f"{markers_folder(str(instant_of(visible)))}/{visible}.marker.{kind}"


def heartbeat_path(instant: str) -> str:
    """The object whose age tells Hudi's writers that the instant is still worked on."""
    return f"{META}/.heartbeat/{instant}"
