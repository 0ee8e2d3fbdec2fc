"""Keys of entries, from columns that an option names."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.committers.requests.contract import RowPlace
from penstock.datasource.http.options import HttpOptions
from penstock.datasource.http.sink import SERVICE
from penstock.datasource.redis import sink as redis_sink
from penstock.datasource.redis.options import RedisOptions
from penstock.writers.requests.keyed import KeyedRequests, row_keys

PLACE = RowPlace("q", 0, 0, 0, 0)


def requests_of(**options: str) -> Any:
    given = HttpOptions.parse({"url": "https://api.example.com/rows", **options})
    return given.with_keys(SERVICE.requests(given)), given.writer_settings


@pytest.mark.parametrize(("option", "keys"), [("keys", ("a", "b")), ("orderBy", ("a", "b"))])
def test_entries_have_the_values_of_the_columns_as_their_key(option: str, keys: tuple[str, ...]) -> None:
    requests, settings = requests_of(**{option: "a, b"})
    rows = pa.record_batch({"a": [1, 1, None], "b": ["x", "y", "z"], "c": [1.5, 2.5, 3.5]})
    requests.check_schema(rows.schema)
    assert [entry.key for entry in requests.entries(rows, PLACE)] == [(1, "x"), (1, "y"), None]
    assert settings.order_by_key


def test_entries_with_a_key_of_their_own_keep_it() -> None:
    """It has the order that the service needs, such as that of a key of Redis."""
    options = {"url": "redis://h/0", "structure": "set", "key": "rows:{a}", "keys": "b"}
    parsed = RedisOptions.parse(options)
    requests = parsed.with_keys(redis_sink.SERVICE.requests(parsed))
    rows = pa.record_batch({"a": ["x", "y"], "b": [1, 1]})
    assert [entry.key for entry in requests.entries(rows, PLACE)] == [("rows:x", None), ("rows:y", None)]


def test_without_keys_nothing_is_ordered() -> None:
    requests, settings = requests_of()
    assert not isinstance(requests, KeyedRequests)
    assert not settings.order_by_key


@pytest.mark.parametrize("option", ["keys", "orderBy"])
@pytest.mark.parametrize(
    ("column", "message"), [("d", "which the query does not have"), ("c", "of type double")]
)
def test_columns_that_are_no_key_are_refused(option: str, column: str, message: str) -> None:
    requests, _ = requests_of(**{option: f"a, {column}"})
    with pytest.raises(SchemaMismatchError, match=f"{option} names the column '{column}'.*{message}"):
        requests.check_schema(pa.schema({"a": pa.int64(), "c": pa.float64()}))


def test_two_kinds_of_keys_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Remove orderBy"):
        requests_of(keys="a", orderBy="b")


def test_values_of_all_types_that_are_allowed_can_be_keys() -> None:
    """A key must be hashable."""
    columns = {
        "b": pa.array([True]),
        "d": pa.array([Decimal("1.50")]),
        "t": pa.array([datetime(2026, 1, 1, tzinfo=timezone.utc)]),
        "day": pa.array([date(2026, 1, 1)]),
        "x": pa.array([b"\0"]),
    }
    (key,) = row_keys(pa.record_batch(columns), tuple(columns))
    assert hash(key) is not None
    assert key == (True, Decimal("1.50"), datetime.fromisoformat("2026-01-01"), date(2026, 1, 1), b"\0")
