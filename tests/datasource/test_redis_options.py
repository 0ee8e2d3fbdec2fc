"""Options of `penstock.redis`: what is missing or wrong is said before anything moves."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import redis.asyncio

from penstock.committers.errors import ConfigurationError
from penstock.datasource.redis.options import RedisOptions, address_of
from penstock.datasource.redis.source import RedisDataSource

GIVEN = {"url": "redis://h:6379/0", "structure": "set", "key": "rows:{id}"}
STREAM = {"structure": "stream", "key": "rows"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "http://h"}, "must be a URL such as redis://"),
        ({"url": "redis://h/x"}, "must be a URL such as redis://"),
        ({"url": "redis://h:port"}, "must be a URL such as redis://"),
        ({"url": "redis://h/0?db=1"}, "must be a URL such as redis://"),
        ({"url": "redis://me:geheim@h/0"}, "give them as username and password"),
        ({"structure": "zset"}, "must be one of set, hash, stream, list"),
        ({"key": "rows:{id"}, "must be a text with columns in braces"),
        ({"key": "rows:{}"}, "must be a text with the names of columns in braces"),
        ({"key": "rows:{id:>3}"}, "must be a text with the names of columns in braces"),
        ({"key": "rows"}, "is the same for all rows"),
        ({"field": "{id}"}, "field is an option of structure=hash"),
        ({"structure": "hash"}, "field is missing"),
        ({"structure": "hash", "key": "rows", "field": "x"}, "is the same for all rows"),
        ({"maxLength": "5"}, "maxLength is an option of structure=stream"),
        ({"exactlyOnce": "true", "delivery": "decoupled"}, "exactlyOnce is an option of streams and lists"),
        ({**STREAM, "exactlyOnce": "true"}, "exactlyOnce needs delivery=decoupled"),
        (
            {**STREAM, "exactlyOnce": "true", "delivery": "decoupled", "maxInFlightRequests": "4"},
            "sends one request at a time",
        ),
        ({"username": "geheim"}, "username needs password"),
    ],
)
def test_a_wrong_option_is_named_and_no_secret_is_shown(options: Mapping[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        RedisOptions.parse({**GIVEN, **options})
    assert said in str(failure.value)
    assert "geheim" not in str(failure.value)


@pytest.mark.parametrize("name", GIVEN)
def test_server_structure_and_key_are_required(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is missing"):
        RedisOptions.parse({key: value for key, value in GIVEN.items() if key != name})


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("REDIS://Host", "redis://host:6379/0"),
        ("rediss://host:1/07", "rediss://host:1/7"),
        ("redis://[::1]/", "redis://[::1]:6379/0"),
    ],
)
def test_a_server_has_one_address(url: str, address: str) -> None:
    assert address_of(url) == address_of(address) == address


def test_each_key_of_a_server_is_a_destination() -> None:
    other = RedisOptions.parse({**GIVEN, "key": "orders:{id}"})
    assert RedisOptions.parse(GIVEN).address == "redis://h:6379/0/set/rows:{id}" != other.address


def test_a_template_has_columns_braces_and_text() -> None:
    key = RedisOptions.parse({**GIVEN, "key": "{{a}}:{b}:{c d}"}).key
    assert (key.columns, key.example) == (["b", "c d"], "{a}:0:0")


def test_secrets_are_not_shown_and_not_stored() -> None:
    secrets = {"username": "geheim", "password": "geheim", "storage.key": "geheim"}
    sink = RedisDataSource({**GIVEN, **secrets, "checkpointLocation": "/c"}).sink()
    assert "geheim" not in repr(sink) + repr(sink.options) + repr(sink.requests) + repr(sink.open_table())
    assert sink.options.given == {**GIVEN, "checkpointLocation": "/c", "rowLog": "/c/row-log"}


def test_tasks_of_decoupled_queries_get_no_secrets() -> None:
    sink = RedisDataSource({**GIVEN, "password": "geheim", "checkpointLocation": "/c"}).sink()
    assert b"geheim" not in pickle.dumps(sink.requests.checker())


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[redis\]'"):
        RedisDataSource(GIVEN).sink()


def test_with_tls_the_certificate_must_be_that_of_the_host() -> None:
    """With both clients, in each version of the library."""
    target = RedisOptions.parse({**GIVEN, "url": "rediss://redis.example.com/0"}).target
    assert target.arguments["ssl_check_hostname"] is True
    for client in (redis.Redis(**target.arguments), redis.asyncio.Redis(**target.arguments)):
        connection: Any = client.connection_pool.make_connection()
        assert isinstance(connection, redis.SSLConnection | redis.asyncio.connection.SSLConnection)
