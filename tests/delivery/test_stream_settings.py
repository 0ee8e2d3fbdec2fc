"""Planted settings in the store get neither the secrets of the process nor another table."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.backlogs import NO_SECRETS, DecoupledLake, context_of, decoupled
from tests.support.lakes import LAKES

from penstock.committers.errors import ConfigurationError, ManifestCorruptError
from penstock.datasource.destinations import stored_table
from penstock.datasource.stored.table_access import TableAccess
from penstock.delivery.attempts import DeliveryRequest
from penstock.delivery.stream_settings import StreamSettings, build_sink
from penstock.delivery.worker import StreamWorker
from penstock.operating.admin import check_checkpoint_gone

SECRETS = TableAccess(
    {
        "AZURE_STORAGE_CLIENT_ID": "id",
        "AZURE_STORAGE_CLIENT_SECRET": "hunter2",
        "AZURE_STORAGE_TENANT_ID": "tenant",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "ALLOW_HTTP": "true",
    },
    {"type": "rest", "credential": "id:hunter2"},
)


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DecoupledLake]:
    lake = decoupled(tmp_path, request.param, batches=1, deliverAfterSeconds="1")
    yield lake
    lake.store.close()


@pytest.fixture
def endpoint() -> Iterator[socket.socket]:
    """Where planted settings point to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        yield listener


def assert_nothing_connected(endpoint: socket.socket) -> None:
    with pytest.raises(TimeoutError):
        endpoint.accept()


def deliver(lake: DecoupledLake, access: TableAccess) -> None:
    worker = StreamWorker(lake.status, lake.store, replace(context_of(), access=access))
    worker.see(lake.status)
    worker.attempt(DeliveryRequest("request"))


PLANTED = {
    "oauth2": {"catalog.uri": "{url}", "catalog.oauth2-server-uri": "{url}/token"},
    "azure": {"storage.azure_storage_authority_host": "{url}"},
    "object": {"catalog.py-catalog-impl": "{module}.Catalog"},
    "store": {"store": "postgresql://u@{host}/penstock"},
    "unknown": {"oauth2-server-uri": "{url}"},
    "case": {"CATALOG.URI": "{url}", "Storage.Azure_Storage_Endpoint": "{url}"},
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_planted_options_are_refused_by_name_and_nothing_is_sent(
    lake: DecoupledLake,
    endpoint: socket.socket,
    planted: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "planted_module.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    host = "{}:{}".format(*endpoint.getsockname())
    names = {"url": f"http://{host}", "host": host, "module": "planted_module"}
    lake.decouple(**{key: text.format(**names) for key, text in planted.items()})
    with pytest.raises(ConfigurationError, match="somebody has changed the store") as refused:
        deliver(lake, SECRETS)
    assert all(key in str(refused.value) for key in planted)
    assert "hunter2" not in str(refused.value)
    assert refused.value.args[0] in lake.status.delivery.error
    assert_nothing_connected(endpoint)
    assert not (tmp_path / "imported").exists()


ELSEWHERE: dict[str, Callable[[Path], dict[str, str]]] = {
    "delta": lambda folder: {"path": str(folder / "other")},
    "iceberg": lambda folder: {"warehouse": str(folder / "other")},
}


def test_settings_that_name_another_table_are_refused(lake: DecoupledLake, tmp_path: Path) -> None:
    lake.decouple(**ELSEWHERE[lake.kind](tmp_path))
    with pytest.raises(ConfigurationError, match="name the table") as refused:
        deliver(lake, NO_SECRETS)
    assert str(tmp_path / "other") in str(refused.value)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "options", [{"table": "db.other"}, {"branch": "other"}, {"catalog": "other"}], ids=lambda one: str(one)
)
def test_catalog_name_and_branch_are_the_stream_s(tmp_path: Path, options: dict[str, str]) -> None:
    lake = decoupled(tmp_path, "iceberg", batches=1)
    lake.decouple(**options)
    with pytest.raises(ConfigurationError, match=r"name the table|its address is missing"):
        deliver(lake, replace(NO_SECRETS, catalog={"type": "in-memory"}))
    lake.store.close()


def test_a_table_in_a_warehouse_is_delivered_by_a_process_that_has_a_catalog_too(tmp_path: Path) -> None:
    """One process serves all streams of a store: the catalog options of one stream do not apply to others."""
    lake = decoupled(tmp_path, "iceberg", batches=1)
    deliver(lake, replace(NO_SECRETS, catalog={"type": "in-memory"}))
    assert lake.row_ids() == [1, 2]
    lake.store.close()


@pytest.mark.parametrize(
    "settings",
    [
        "[" * 100_000,
        "[]",
        '{"delivery": "decoupled"}',
        '{"delivery": "decoupled", "options": {"path": 1}}',
        '{"delivery": "decoupled", "options": [["path", null]]}',
        '{"delivery": "decoupled", "options": "abc"}',
    ],
)
def test_damaged_settings_are_reported(settings: str) -> None:
    with pytest.raises(ManifestCorruptError, match="damaged"):
        StreamSettings.parse(settings)


# A kind that is not known ---------------------------------------------------------------------------


def test_a_kind_that_is_not_known_is_named_wherever_a_table_is_opened(lake: DecoupledLake) -> None:
    sink: Any = lake.sink
    stream = replace(lake.status, kind="clay")
    settings = StreamSettings(options=sink.options.given)
    uses: list[Callable[[], object]] = [
        lambda: stored_table(stream, NO_SECRETS),
        lambda: build_sink(stream, settings, NO_SECRETS),
        lambda: check_checkpoint_gone(replace(stream, settings=CHECKPOINT), NO_SECRETS),
    ]
    for use in uses:
        with pytest.raises(ConfigurationError, match=r"kind 'clay'.*pip install --upgrade penstock"):
            use()


CHECKPOINT = '{"delivery": "decoupled", "checkpoint": "/cp", "options": {}}'


def test_a_manifest_of_another_kind_than_the_table_is_refused(lake: DecoupledLake) -> None:
    (manifest,) = [lake.store.manifest(lake.stream, 0)]
    assert manifest is not None
    other = "iceberg" if lake.kind == "delta" else "delta"
    for use in (lake.committer().commit, lake.committer().missing):
        with pytest.raises(ManifestCorruptError, match=f"of kind '{other}', but the table is of"):
            use(replace(manifest, kind=other))
