"""Options of readers: of `spark.read` and of `penstock.reader`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Protocol, TypeVar

from ...readers.scan import ScanFile
from ...readers.streaming.commits import StreamedTable
from ...readers.streaming.plan import Limits, Skips, StreamStart
from ...readers.table import TableReader, TableScan, split
from ...readers.values import parse_timestamp
from ..options.declaring import option, optional, options_of, prefixes_of
from ..options.parsing import MIB, check, columns, count, flag, parse_options, size, text, without_refused
from ..options.places import problems_of_plain_http
from ..options.stream import missing_option, problems_of_urls, required_fields

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def time_of(text: str) -> datetime:
    """Parse a time; without a zone it is in UTC."""
    try:
        return _EPOCH + timedelta(microseconds=parse_timestamp(text, has_zone=True))
    except (ValueError, OverflowError):
        raise ValueError("must be a time such as 2026-11-29T10:00:00Z, or a day") from None


def number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()):
        raise ValueError("must be a whole number")
    return int(text)


ReadOptionsT = TypeVar("ReadOptionsT", bound="ReadOptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of all readers."""

    data_source: ClassVar[str]
    """Its name."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Problems of options that it does not have, by name."""

    columns: tuple[str, ...] | None = optional(
        "columns",
        columns,
        "Columns to read: `a, b`, or a JSON array. Spark does not tell Python sources which columns a query "
        "needs, so without this option all of them are read.",
        default="all",
    )
    where: str | None = optional(
        "where",
        text,
        "Condition on the rows, such as `day >= '2026-01-01' AND (amount > 5 OR note IS NULL)`. Files and "
        "row groups in which no row can match are not read.",
    )

    @classmethod
    def parse(cls: type[ReadOptionsT], options: Mapping[str, str]) -> ReadOptionsT:
        """
        Raises:
            ConfigurationError: lists all problems, one sentence each.
        """
        return parse_read_options(cls, cls.data_source, options, cls.problems, cls.refused)

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterable[str]:
        """Return problems of values that are all valid one by one."""
        return ()

    def split(self, files: Iterable[ScanFile]) -> list[list[ScanFile]]:
        """Distribute files over the tasks of Spark: one for each."""
        return [[file] for file in files]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReadOptions(ReadOptions):
    """Options of all readers of data files."""

    split_bytes: int = option(
        "splitSize",
        size(MIB, 64 * 1024 * MIB),
        "Approximate size of the files that one task of Spark reads. Small tables are divided further, for "
        "all cores of the driver. Only in Spark.",
        default="128mb",
    )

    def split(self, files: Iterable[ScanFile]) -> list[list[ScanFile]]:
        """Distribute files over the tasks of Spark, of about equal size."""
        return split(files, self.split_bytes, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReadOptions(FileReadOptions):
    """Options of readers of tables whose versions are numbers."""

    versions: ClassVar[Mapping[str, str]] = {
        "version_as_of": "versionAsOf",
        "timestamp_as_of": "timestampAsOf",
    }
    """Names of the options that say a version, by their field: at most one is given."""

    version_as_of: int | None = optional(
        "versionAsOf", number, "Version of the table.", default="the newest one"
    )
    timestamp_as_of: datetime | None = optional(  # noqa: RUF009  it returns a field
        "timestampAsOf", time_of, "Read the newest version at this time, such as `2026-11-29T10:00:00Z`."
    )

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterable[str]:
        """See `ReadOptions`."""
        return only_one(values, cls.versions)


LATEST = "latest"


def starting_version(text: str) -> int | str:
    return LATEST if text.strip().lower() == LATEST else number(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReadOptions(FileReadOptions):
    """Options of all readers of streams."""

    starting_version: int | str | None = optional(
        "startingVersion",
        starting_version,
        "Version of the table from which on a new query reads the rows that are added, without those that "
        "were there before; `latest`: only those of later commits.",
        default="all rows of the newest version, then those that are added",
    )
    starting_timestamp: datetime | None = optional(  # noqa: RUF009  it returns a field
        "startingTimestamp",
        time_of,
        "The same, from the first version at or after this time on, such as `2026-11-29T10:00:00Z`.",
    )
    files_max: int | None = optional(
        "maxFilesPerTrigger",
        count(1, 10**9),
        "Number of files that one batch reads at most.",
        default="no limit",
    )
    file_bytes_max: int | None = optional(
        "maxBytesPerTrigger",
        size(1, 1024 * 1024 * MIB),
        "Size of the files that one batch reads at most, but at least one file.",
        default="no limit",
    )
    ignore_deletes: bool = option(
        "ignoreDeletes", flag, "Pass over commits that only delete rows.", default="false"
    )
    skip_change_commits: bool = option(
        "skipChangeCommits",
        flag,
        "Pass over commits that delete or change rows, also over the rows that they add.",
        default="false",
    )

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterable[str]:
        """See `ReadOptions`."""
        return problems_of_streams(values)

    @property
    def start(self) -> StreamStart:
        given = self.starting_version
        return StreamStart(
            given if isinstance(given, int) else None, given == LATEST, self.starting_timestamp
        )

    @property
    def limits(self) -> Limits:
        return Limits(self.files_max, self.file_bytes_max)

    @property
    def skips(self) -> Skips:
        return Skips(self.ignore_deletes, self.skip_change_commits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStreamReadOptions(StreamReadOptions):
    """Options of readers of streams with the columns of Delta's change feed."""

    changes: bool = option(
        "changes",
        flag,
        "Read changes: rows that are new and rows that are gone, with the columns `_change_type` (`insert` "
        "or `delete`), `_commit_version` and `_commit_timestamp`. The option `changes=delta-cdf` of sinks "
        "takes them.",
        default="false",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStreamReadOptions(StreamReadOptions):
    """Options of readers of streams of tables whose versions are snapshots with ids."""

    starting_version: int | str | None = optional(
        "startingVersion",
        starting_version,
        "Id of the snapshot from which on a new query reads the rows that are added, without those that were "
        "there before; `latest`: only those of later commits.",
        default="all rows of the newest snapshot, then those that are added",
    )


class Opens(Protocol):
    """Options of readers of one format."""

    columns: tuple[str, ...] | None
    where: str | None

    def open(self) -> TableReader:
        """Load the version of the table that the options say.

        Raises:
            ConfigurationError: the table or the version does not exist.
            TableNotSupportedError: the table cannot be read.
            RetryableError: it cannot be read now.
        """
        ...


class OpensStream(Opens, Protocol):
    """Options of readers of streams of one format."""

    @property
    def start(self) -> StreamStart: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def skips(self) -> Skips: ...

    def history(self, scan: TableScan) -> StreamedTable[Any]:
        """Return the history of the table that was opened.

        Args:
            scan: what the stream reads
        """
        ...


def parse_read_options(
    cls: type[ReadOptionsT],
    name: str,
    given: Mapping[str, str],
    problems_of_values: Callable[[Mapping[str, Any]], Iterable[str]],
    refused: Mapping[str, str] | None = None,
) -> ReadOptionsT:
    """Parse options of a reader.

    Args:
        cls: declares the options
        name: of the data source, for messages
        problems_of_values: returns problems of values that are all valid one by one
        refused: problems of options that this reader does not have, by name

    Raises:
        ConfigurationError: lists all problems, one sentence each.
    """
    options, prefixes = options_of(cls), prefixes_of(cls)
    given, problems_of_refused = without_refused(given, refused)
    values, problems = parse_options(options, prefixes, given)
    are_valid = not problems
    problems += problems_of_refused
    keys = {key.lower() for key in given}
    required = required_fields(cls)
    problems += [
        missing_option(one.name, start=" or .load(path)")
        for one in options
        if one.field in required and one.name.lower() not in keys
    ]
    shown = {
        one.name: given[key]
        for key in given
        for one in options
        if one.name.lower() == key.lower() and not one.is_secret and one.name != "where"
    }
    problems += problems_of_urls(shown, prefixes)
    if are_valid:
        problems += problems_of_plain_http(values, ("path",))
        problems += problems_of_values(values)
    check(f"{name} (reading)", problems)
    return cls(**values)


def only_one(values: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """Return the problem of options that say different versions of the table.

    Args:
        names: of these options, by their field
    """
    given = [name for of_field, name in names.items() if of_field in values]
    return [f"{' and '.join(given)} are given: give one of them."] if len(given) > 1 else []


def problems_of_streams(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of options of a stream that do not go together."""
    starts = {"starting_version": "startingVersion", "starting_timestamp": "startingTimestamp"}
    yield from only_one(values, starts)
    skips = (values.get("ignore_deletes"), values.get("skip_change_commits"))
    if values.get("changes") and any(skips):
        yield "changes reads what ignoreDeletes and skipChangeCommits pass over: give one of them."
