"""Options of `penstock.nats`: what is missing or wrong is said before anything moves."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping

import pytest

from penstock.committers.errors import ConfigurationError
from penstock.datasource.nats.options import NatsOptions, address_of
from penstock.datasource.nats.source import NatsDataSource

GIVEN = {"url": "nats://h:4222", "subject": "rows.{id}"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "http://h"}, "must be a URL such as nats://"),
        ({"url": "nats://h/x"}, "must be a URL such as nats://"),
        ({"url": "nats://h:port"}, "must be a URL such as nats://"),
        ({"url": "nats://a,,nats://b"}, "must be a URL such as nats://"),
        ({"url": "nats://a,tls://b"}, "must have nats:// in all URLs"),
        ({"url": "nats://me:geheim@h"}, "give them as username, password and token"),
        ({"url": "nats://geheim@h"}, "give them as username, password and token"),
        ({"subject": "rows.{id"}, "must be a text with columns in braces"),
        ({"subject": "rows..{id}"}, "must be a subject such as"),
        ({"subject": "rows.*"}, "must be a subject such as"),
        ({"subject": "rows.>"}, "must be a subject such as"),
        ({"subject": "rows {id}"}, "must be a subject such as"),
        ({"subject": "$JS.API.{id}"}, "does not begin with $"),
        ({"expectedStream": "a.b"}, "must be the name of a stream"),
        ({"headers": "x"}, "must be a JSON object of strings"),
        ({"headers": '{"a b": "x"}'}, "not the name of a header"),
        ({"headers": '{"Nats-Rollup": "all"}'}, "headers of NATS itself"),
        ({"headers": '{"nats-msg-id": "1"}'}, "headers of NATS itself"),
        ({"headers": '{"a": " x"}'}, "has spaces around the value of 'a'"),
        ({"headers": '{"a": "x\\ny"}'}, "control characters"),
        ({"headers": '{"a": "{x"}'}, "must be a text with columns in braces"),
        ({"exactlyOnce": "true"}, "exactlyOnce needs delivery=decoupled or idColumn"),
        ({"username": "geheim"}, "username and password need each other"),
        ({"password": "geheim"}, "username and password need each other"),
        ({"token": "geheim", "nkeySeed": "geheim"}, "token and nkeySeed are different ways to log in"),
        ({"caFile": "/ca.pem"}, "caFile needs TLS"),
    ],
)
def test_a_wrong_option_is_named_and_no_secret_is_shown(options: Mapping[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        NatsOptions.parse({**GIVEN, **options})
    assert said in str(failure.value)
    assert "geheim" not in str(failure.value)


@pytest.mark.parametrize("name", GIVEN)
def test_server_and_subject_are_required(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is missing"):
        NatsOptions.parse({key: value for key, value in GIVEN.items() if key != name})


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("NATS://Host", "nats://host:4222"),
        ("tls://host:1/", "tls://host:1"),
        ("nats://[::1]", "nats://[::1]:4222"),
        ("nats://b:1 , nats://a,nats://b:1", "nats://a:4222,nats://b:1"),
    ],
)
def test_servers_have_one_address(url: str, address: str) -> None:
    assert address_of(url) == address_of(address) == address


def test_each_subject_of_a_server_is_a_destination() -> None:
    other = NatsOptions.parse({**GIVEN, "subject": "orders.{id}"})
    assert NatsOptions.parse(GIVEN).address == "nats://h:4222/rows.{id}" != other.address


@pytest.mark.parametrize(
    ("subject", "wildcard"),
    [("rows", "rows"), ("rows.{id}", "rows.*"), ("a.x{b}y.{c}{d}", "a.*.*"), ("{a}.b", "*.b")],
)
def test_the_streams_of_all_rows_are_found_by_a_wildcard(subject: str, wildcard: str) -> None:
    assert NatsOptions.parse({**GIVEN, "subject": subject}).target.subjects == wildcard


@pytest.mark.parametrize(
    "secrets",
    [
        {"username": "geheim", "password": "geheim"},
        {"token": "geheim"},
        {"nkeySeed": "geheim"},
        {"credentials": "geheim"},
    ],
)
def test_secrets_are_not_shown_and_not_stored(secrets: dict[str, str]) -> None:
    sink = NatsDataSource({**GIVEN, **secrets, "storage.key": "geheim", "checkpointLocation": "/c"}).sink()
    assert "geheim" not in repr(sink) + repr(sink.options) + repr(sink.requests) + repr(sink.open_table())
    assert sink.options.given == {**GIVEN, "checkpointLocation": "/c", "rowLog": "/c/row-log"}
    assert b"geheim" not in pickle.dumps(sink.requests.checker())  # for tasks of decoupled queries


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[nats\]'"):
        NatsDataSource(GIVEN).sink()
