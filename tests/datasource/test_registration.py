"""Warnings of `penstock.register`, and plug-ins that cannot be loaded."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace
from typing import Any, cast

import pytest

import penstock
from penstock.committers.contract import StreamKey
from penstock.datasource import destinations, plug_ins
from penstock.datasource.spark import registration


def session(settings: dict[str, str], context: object | None) -> Any:
    conf = SimpleNamespace(get=lambda key, default=None: settings.get(key, default))
    return SimpleNamespace(conf=conf, dataSource=SimpleNamespace(register=lambda _: None), _sc=context)


EXECUTORS = "spark.executor.extraJavaOptions"


@pytest.mark.parametrize(
    ("settings", "context", "warns"),
    [
        (penstock.START_SETTINGS, None, True),
        ({EXECUTORS: penstock.START_SETTINGS[EXECUTORS]}, None, True),
        ({}, None, False),
        (penstock.START_SETTINGS, SimpleNamespace(master="yarn"), False),
    ],
    ids=["connect", "connect, executors only", "connect without", "own application"],
)
def test_a_connect_server_without_bounds_checks_is_warned_of(
    settings: dict[str, str], context: object | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    penstock.register(cast(Any, session(settings, context)), tune=False)
    assert ("turns off Arrow's bounds checks" in caplog.text) == warns


def test_each_session_of_spark_connect_gets_the_data_sources_once() -> None:
    registered: list[Any] = []
    for session_id in ("one", "other", "one", "other"):
        spark = session({}, None)
        spark.dataSource.register, spark.session_id = registered.append, f"{__name__}-{session_id}"
        penstock.register(spark, tune=False)
    assert len(registered) == 2 * len(set(registered)) == 2 * len(registration.DATA_SOURCES)


def test_a_session_whose_registry_is_hidden_gets_the_data_sources_again() -> None:
    registered: list[Any] = []
    for _ in range(2):
        spark = session({}, SimpleNamespace(master="yarn"))
        spark.dataSource.register = registered.append
        penstock.register(spark, tune=False)
    assert len(registered) == 2 * len(registration.DATA_SOURCES)


def test_a_plug_in_that_cannot_be_loaded_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = EntryPoint("broken", "no_such_package:DESTINATION", plug_ins.GROUP)
    for module in (registration, destinations):
        monkeypatch.setattr(module, "plug_ins", lambda: EntryPoints([broken]))
    registered: list[Any] = []
    spark = session({}, SimpleNamespace(master="yarn"))
    spark.dataSource.register = registered.append
    penstock.register(spark, tune=False)
    assert len(registered) == len(plug_ins.BUILT_IN) + 2  # and those of several tables
    assert "broken (no_such_package:DESTINATION) cannot be loaded" in caplog.text
    with pytest.raises(
        penstock.ConfigurationError, match="cannot be loaded from no_such_package:DESTINATION"
    ):
        destinations.destination_type(StreamKey("q", "t"), "broken")
