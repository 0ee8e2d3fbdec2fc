"""A request-based destination of Penstock: points of InfluxDB, sent in its line protocol.

Measurement, tags and time identify a point: one that arrives twice replaces itself. So rows with different
tags or times are there exactly once. A row without values gets the field `count`: a point needs a field.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urlencode

import pyarrow as pa
from pyarrow import types

from penstock import SchemaMismatchError
from penstock import destination as ps

KIND = "influxdb"
URL = partial(ps.http_url, example="http://localhost:8086", credentials="token")


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluxOptions(ps.RequestOptions):
    NAME: ClassVar[str] = KIND
    REQUIRED: ClassVar[Mapping[str, str]] = {"url": "http://localhost:8086", "database": "d", "time": "ts"}

    url: str = field(metadata=ps.declared("url", URL, "URL of the server."))
    database: str = field(metadata=ps.declared("database", str, "Name of the database."))
    measurement: str = ps.option("measurement", str, "Name of the measurement.", default="rows")
    time: str = field(metadata=ps.declared("time", str, "Column with the times: TIMESTAMP, or microseconds."))
    tags: tuple[str, ...] | None = ps.optional("tags", ps.columns, "Columns that are tags.")
    token: str | None = ps.optional("token", str, "Token for the server. Never stored.", is_secret=True)
    batch_entries_max: int = ps.batch_entries("5000")
    record_bytes_max: int = ps.record_bytes("64kb")

    @property
    def address(self) -> str:
        return f"{self.url}{self.database}/{self.measurement}"


@dataclass(frozen=True, slots=True)
class Points:
    """How rows become lines. Has no secrets."""

    measurement: str
    tags: tuple[str, ...]
    time: str

    def check(self, rows: pa.Schema) -> None:
        for name in (self.time, *self.tags):
            if name not in rows.names:
                raise SchemaMismatchError(f"The query has no column {name!r}: {', '.join(rows.names)}.")
        of_fields = (types.is_integer, types.is_floating, types.is_boolean, types.is_string)
        of_others = dict.fromkeys(self.tags, (types.is_integer, types.is_string))
        of_others[self.time] = (types.is_integer, types.is_timestamp)
        for column in rows:
            if not any(is_a(column.type) for is_a in of_others.get(column.name, of_fields)):
                raise SchemaMismatchError(f"Cast the column {column.name}: it cannot be {column.type} here.")

    def lines(self, rows: pa.RecordBatch) -> list[bytes]:
        """Raise SchemaMismatchError if a row has no time, or a value that the line protocol cannot write."""
        if rows.column(self.time).null_count:
            raise SchemaMismatchError(f"A row has NULL in the column {self.time}: filter it.")
        micros = rows.column(self.time).cast(pa.int64()).to_pylist()
        try:
            values = rows.drop_columns([self.time]).to_pylist()
        except UnicodeDecodeError as error:
            raise SchemaMismatchError(f"A text is no UTF-8: {error.reason}.") from None
        return [self._line(row, micro) for row, micro in zip(values, micros, strict=True)]

    def _line(self, row: dict[str, Any], micros: int) -> bytes:
        key = [_name(self.measurement, ", ")]
        key += [f"{_name(tag)}={_name(str(row[tag]))}" for tag in self.tags if row[tag] not in (None, "")]
        row = {name: value for name, value in row.items() if name not in self.tags and value is not None}
        fields = ",".join(f"{_name(name)}={_value(value)}" for name, value in (row or {"count": 1}).items())
        return f"{','.join(key)} {fields} {micros}".encode()


def _name(text: str, special: str = ", =") -> str:
    if "\n" in text or text.endswith("\\"):
        raise SchemaMismatchError(f"{text!r} cannot be a tag: it has a line break or ends with \\.")
    return "".join(f"\\{one}" if one in special else one for one in text)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value}i"
    if isinstance(value, str):
        return '"' + value.replace("\\", r"\\").replace('"', r"\"") + '"'
    if not math.isfinite(value):
        raise SchemaMismatchError(f"InfluxDB has no {value}: replace it by NULL.")
    return repr(value)


@dataclass(frozen=True, slots=True)
class InfluxRequests(ps.RowRequests):
    """Runs on executors and in the delivery process."""

    points: Points
    target: ps.HttpTarget

    def check_schema(self, rows: pa.Schema) -> None:
        self.points.check(rows)

    def checker(self) -> Callable[[pa.RecordBatch], object]:
        return partial(Points.lines, self.points)

    def check_connection(self) -> bool:
        """Before a query starts: `penstock check`."""
        self.target.connect()
        return True

    def entries(self, rows: pa.RecordBatch, place: ps.RowPlace) -> Sequence[ps.Entry[bytes]]:
        lines, ids = self.points.lines(rows), ps.row_ids(rows, place, self.id_column)
        return [
            ps.Entry(line, len(line) + 1, row_id, place.position + number)
            for number, (line, row_id) in enumerate(zip(lines, ids, strict=True))
        ]

    def new_client(self) -> ps.Client[bytes]:
        return ps.HttpClient(self.target, self.settings.limits.in_flight_requests_max)


def _requests(options: InfluxOptions) -> InfluxRequests:
    url = f"{options.url}write?" + urlencode({"db": options.database, "precision": "u"})
    headers = {"Authorization": f"Token {options.token}"} if options.token else {}
    target = ps.HttpTarget(url, body="ndjson", headers={"Content-Type": "text/plain", **headers})
    points = Points(options.measurement, options.tags or (), options.time)
    return InfluxRequests(options.address, options.writer_settings, options.id_column, points, target)


class InfluxDataSource(ps.RequestDataSource):
    format = KIND
    service = "penstock_influxdb:SERVICE"


SERVICE = ps.RequestService(
    kind=KIND,
    options=InfluxOptions,
    requests=_requests,
    library="aiohttp",
    package="penstock-influxdb",
    secrets_are_for="url",
)
DESTINATION = SERVICE.destination("penstock_influxdb:InfluxDataSource")
