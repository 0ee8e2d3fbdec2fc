"""What `penstock.register` says of the server that it registers with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

import penstock


def session(settings: dict[str, str], context: object | None) -> Any:
    conf = SimpleNamespace(get=lambda key, default=None: settings.get(key, default))
    return SimpleNamespace(conf=conf, dataSource=SimpleNamespace(register=lambda _: None), _sc=context)


@pytest.mark.parametrize(
    ("settings", "context", "warns"),
    [
        (penstock.START_SETTINGS, None, True),
        (
            {"spark.executor.extraJavaOptions": penstock.START_SETTINGS["spark.executor.extraJavaOptions"]},
            None,
            True,
        ),
        ({}, None, False),
        (penstock.START_SETTINGS, SimpleNamespace(master="yarn"), False),
    ],
    ids=["connect", "connect, executors only", "connect without", "own application"],
)
def test_a_connect_server_without_bounds_checks_is_warned_of(
    settings: dict[str, str], context: object | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    penstock.register(cast(Any, session(settings, context)), tune=False)
    assert ("Arrow checks no bounds" in caplog.text) == warns
