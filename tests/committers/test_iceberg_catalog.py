"""Catalogs: options, the embedded catalog, and hidden secrets."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from tests.support.iceberg_tables import SCHEMA, tables_in
from tests.support.readers import iceberg_rows

from penstock.committers.errors import ConfigurationError, PenstockError, RetryableError
from penstock.committers.iceberg.catalog import (
    OPEN_CATALOGS_MAX,
    CatalogConfig,
    catalog_error,
    io_properties,
    open_catalog,
)
from penstock.committers.iceberg.redaction import redacted
from penstock.committers.iceberg.table import load, load_if_there

# Options -----------------------------------------------------------------------------------------------


def test_a_warehouse_alone_is_an_embedded_catalog(tmp_path: Path) -> None:
    for warehouse in (str(tmp_path), f"file://{tmp_path}"):
        config = CatalogConfig.of(None, {}, warehouse)
        assert (config.name, config.warehouse, config.is_embedded) == ("penstock", str(tmp_path), True)
        assert config.address_name == str(tmp_path)


def test_a_relative_warehouse_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CatalogConfig.of(None, {}, "lake").warehouse == str(tmp_path / "lake")


def test_a_warehouse_with_a_catalog_is_a_property_of_the_catalog() -> None:
    config = CatalogConfig.of("prod", {"type": "rest"}, "s3://bucket/lake")
    assert (config.name, config.warehouse) == ("prod", None)
    assert config.properties == {"type": "rest", "warehouse": "s3://bucket/lake"}
    assert config.address_name == "prod"


def test_properties_without_a_name_are_the_default_catalog_s() -> None:
    assert CatalogConfig.of(None, {"type": "rest"}).name == "default"


@pytest.mark.parametrize(
    ("catalog", "properties", "warehouse", "says"),
    [
        (None, {}, None, "option warehouse, .* or the option catalog"),
        (None, {}, "s3://bucket/lake", "not on the local disk"),
        (None, {}, "/lake?x", "parts of a URL"),
        ("http://host", {}, None, "catalog.uri"),
        ("", {}, None, "must be a name"),
        ("c", {"warehouse": "a"}, "b", "differ"),
    ],
)
def test_invalid_catalog_options_are_refused(
    catalog: str | None, properties: dict[str, str], warehouse: str | None, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        CatalogConfig.of(catalog, properties, warehouse)


# The embedded catalog ----------------------------------------------------------------------------------


def test_others_open_the_embedded_catalog_with_pyiceberg(tmp_path: Path) -> None:
    tables = tables_in(tmp_path)
    table, _ = tables.create()
    lake = tmp_path / "lake"
    theirs = load_catalog(
        "penstock", type="sql", uri=f"sqlite:///{lake}/catalog.sqlite", warehouse=f"file://{lake}"
    )
    theirs.load_table("db.t").append(pa.table({"id": [1]}, schema=pa.schema([("id", pa.int64())])))
    assert theirs.list_tables("db") == [("db", "t")]
    assert iceberg_rows(table.refresh().metadata_location, "id") == [(1,)]
    theirs.create_table("db.mine", SCHEMA)
    assert tables.load("db.mine").location() == f"file://{lake}/db/mine"


def test_a_warehouse_with_odd_characters_in_its_path_works(tmp_path: Path) -> None:
    tables = tables_in(tmp_path / "a b@c:d&e=ü")
    table, _ = tables.create()
    assert (tmp_path / "a b@c:d&e=ü" / "lake" / "catalog.sqlite").exists()
    tables.append([1])
    assert iceberg_rows(table.refresh().metadata_location, "id") == [(1,)]


def test_a_catalog_is_kept_until_its_file_is_another(tmp_path: Path) -> None:
    """Connections to a deleted file would still write to it."""
    tables = tables_in(tmp_path)
    tables.create()
    first = open_catalog(tables.config)
    assert open_catalog(tables_in(tmp_path).config) is first
    shutil.rmtree(tmp_path / "lake")
    assert open_catalog(tables.config) is not first
    assert open_catalog(tables.config).list_namespaces() == []
    assert tables.create()[1]


def test_a_missing_catalog_is_neither_created_nor_taken_for_an_empty_one(tmp_path: Path) -> None:
    """For example if its disk is not mounted: nobody has dropped the table."""
    tables = tables_in(tmp_path)
    tables.create()
    shutil.move(tmp_path / "lake", tmp_path / "away")
    assert load_if_there(tables.config, tables.address("db.t")) is None
    with pytest.raises(RetryableError, match="There is no Iceberg catalog in the warehouse"):
        load(tables.config, tables.address("db.t"))
    assert not (tmp_path / "lake").exists()

    shutil.move(tmp_path / "away", tmp_path / "lake")
    assert load(tables.config, tables.address("db.t")).name() == ("db", "t")


def test_the_number_of_open_catalogs_is_bounded(tmp_path: Path) -> None:
    from penstock.committers.iceberg import catalog

    for n in range(OPEN_CATALOGS_MAX + 2):
        open_catalog(tables_in(tmp_path / str(n)).config)
    assert len(catalog._open) == OPEN_CATALOGS_MAX


def test_processes_that_create_the_catalog_at_once_all_use_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")

    def create(folder: Path, start: Any, number: int) -> None:
        start.wait()
        tables = tables_in(folder)
        tables.create()
        tables.create(name=f"db.t{number}")

    for round_ in range(5):
        start = context.Barrier(4)
        folder = tmp_path / str(round_)
        processes = [context.Process(target=create, args=(folder, start, number)) for number in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * 4
        names = {name for _, name in open_catalog(tables_in(folder).config).list_tables("db")}
        assert names == {"t", "t0", "t1", "t2", "t3"}


def test_a_concurrently_created_catalog_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg checks whether its tables exist before it creates them. The other creates one in between."""
    from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
    from sqlalchemy.schema import CreateTable

    tables = list(SqlCatalogBaseTable.metadata.sorted_tables)
    created: list[str] = []

    def create_late(catalog: SqlCatalog) -> None:
        with catalog.engine.begin() as connection:
            for table in tables[len(created) :]:
                created.append(table.name)
                connection.execute(CreateTable(table))
                break
        SqlCatalogBaseTable.metadata.create_all(catalog.engine, checkfirst=False)

    monkeypatch.setattr(SqlCatalog, "create_tables", create_late)
    assert open_catalog(CatalogConfig.of(None, {}, str(tmp_path))).list_namespaces() == []
    assert created


def test_a_forked_process_opens_the_catalog_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's connections must not be carried across a fork."""
    config = tables_in(tmp_path).config
    first = open_catalog(config)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert open_catalog(config) is not first


def test_a_commit_waits_for_another_that_holds_the_file(tmp_path: Path) -> None:
    """SQLAlchemy's own default is 5 seconds; the catalog's URL says how long."""
    config = tables_in(tmp_path).config
    assert config.embedded_properties["uri"].endswith("catalog.sqlite?timeout=60")


def test_a_warehouse_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        open_catalog(CatalogConfig.of(None, {}, str(tmp_path / "file" / "lake")))


# Secrets -----------------------------------------------------------------------------------------------

SECRETS = {
    "uri": "postgresql+psycopg2://me:pa%40ss%2Fw0rd@localhost:1/db?sslpassword=qu3ry",
    "credential": "client:s3cr3t/+",
    "token": "t0ken-t0ken",
    "s3.secret-access-key": "AKsecret+/=",
    "s3.access-key-id": "AKIAxyz",
    "header.Authorization": "Bearer abcdef123456",
    "warehouse": "w",
}
HIDDEN = ("pa%40ss", "pa@ss", "w0rd", "qu3ry", "s3cr3t", "t0ken", "AKsecret", "AKIAxyz", "abcdef123456")


def _shown(text: str) -> list[str]:
    return [secret for secret in HIDDEN if secret in text]


@pytest.mark.parametrize(
    "text",
    [
        "{uri}",
        "cannot connect to {uri} as me",
        "login of me failed with pa@ss/w0rd, qu3ry",
        "rejected: s3cr3t%2F%2B",
        "bad url postgresql://x:pa@ss/w0rd@host",
        "{{'credential': 'client:s3cr3t/+'}}",
        "client_id=client&client_secret=s3cr3t%2F%2B&scope=catalog",
        "HTTP 401 for token t0ken-t0ken. (Bearer abcdef123456)",
        "<SecretAccessKey>AKsecret+/=</SecretAccessKey>",
        "key AKIAxyz, password=pa@ss/w0rd",
        '{{"s3.secret-access-key": "AKsecret+/="}}',
    ],
)
def test_secrets_are_taken_out_of_any_text(text: str) -> None:
    assert _shown(redacted(ValueError(text.format(**SECRETS)), SECRETS)) == []


@pytest.mark.parametrize(
    "text",
    [
        "https://user:p4ss@host/x",
        "postgresql://u:p4ss@host",
        "sig=1&password=p4ss&x=1",
        "token: p4ss",
        "Authorization: Bearer p4ssp4ssp4ss",
    ],
)
def test_texts_that_look_like_secrets_are_removed(text: str) -> None:
    assert "p4ss" not in redacted(text, {})


def test_what_is_no_secret_stays() -> None:
    text = "Table db.t does not exist at https://host:8181/v1/prod; key_columns are id"
    properties = {"type": "rest", "token": "e", "s3.resolve-region": "true", "uri": "https://host:8181"}
    assert redacted(text, properties) == text


def _error_of(properties: Mapping[str, str]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        open_catalog(CatalogConfig.of("prod", properties))
    return caught.value


@pytest.mark.parametrize(
    "properties",
    [
        {**SECRETS, "type": "sql"},
        {**SECRETS, "type": "sql", "uri": "nonsense://me:pa@ss/w0rd@host/db"},
        {**SECRETS, "type": "sql", "uri": "sqlite:////nowhere/pa@ss/w0rd.db"},
        {**SECRETS, "type": "rest", "uri": "http://me:t0ken-t0ken@127.0.0.1:1"},
        {**SECRETS, "type": "glue", "glue.endpoint": "no URL", "glue.session-token": "t0ken-t0ken"},
        {**SECRETS, "type": "t0ken-t0ken"},
        {**SECRETS, "type": "sql", "echo": "t0ken-t0ken"},
    ],
    ids=["sql down", "sql dialect", "sqlite path", "rest down", "glue endpoint", "type", "bad switch"],
)
def test_no_secret_shows_when_a_catalog_cannot_be_opened(
    properties: dict[str, str], capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    error = _error_of(properties)
    text = "".join(traceback.format_exception(error))
    assert _shown(text) == []
    assert error.__suppress_context__
    assert error.__cause__ is None
    assert _shown("".join(traceback.format_exception(pickle.loads(pickle.dumps(error))))) == []
    assert _shown("".join(capfd.readouterr())) == []
    assert _shown("".join(str(warning.message) for warning in recwarn)) == []


def test_secrets_of_pyiceberg_s_own_configuration_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__TOKEN", "fr0m-the-environment")
    config = CatalogConfig.of("prod", {})
    error = catalog_error(ValueError("bad token fr0m-the-environment"), "cannot be opened", config)
    assert "fr0m" not in str(error)


@pytest.mark.parametrize(
    "passing",
    [
        requests.exceptions.ChunkedEncodingError("the response was cut"),
        requests.Timeout("no answer"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_passes_is_no_wrong_configuration(passing: Exception) -> None:
    config = CatalogConfig.of("prod", {})
    assert isinstance(catalog_error(passing, "cannot be opened", config), RetryableError)
    lasting = requests.exceptions.InvalidURL("no host")
    assert isinstance(catalog_error(lasting, "cannot be opened", config), ConfigurationError)


def test_an_unknown_type_of_catalog_is_a_configuration_error() -> None:
    error = _error_of({"type": "nonsense"})
    assert isinstance(error, ConfigurationError)


def test_no_secret_shows_in_any_repr() -> None:
    config = CatalogConfig.of("prod", SECRETS)
    assert _shown(repr(config) + str(config)) == []


# For executors -----------------------------------------------------------------------------------------


def _table_with(properties: dict[str, Any]) -> Table:
    io = SimpleNamespace(properties=properties)
    return cast("Table", SimpleNamespace(io=io, name=lambda: ("db", "t")))


def test_executors_get_file_io_and_nothing_of_the_catalog() -> None:
    for_files = {
        "s3.endpoint": "http://host",
        "s3.secret-access-key": "vended",
        "s3.session-token": "vended",
        "client.region": "eu",
        "gcs.oauth2.token": "vended",
        "adls.sas-token.account": "vended",
        "hdfs.host": "h",
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
    }
    of_the_catalog = {
        **SECRETS,
        "auth": {"type": "oauth2"},
        "auth.manager": object(),
        "rest.sigv4-enabled": "true",
    }
    of_the_catalog.pop("s3.secret-access-key")
    of_the_catalog.pop("s3.access-key-id")
    table = _table_with({**of_the_catalog, **for_files, "write.format.default": "parquet"})
    assert io_properties(table) == for_files


def test_remote_signing_is_refused() -> None:
    for properties in ({"s3.signer": "S3V4RestSigner"}, {"s3.remote-signing-enabled": "true"}):
        with pytest.raises(ConfigurationError, match="vended-credentials"):
            io_properties(_table_with(properties))


def test_a_glue_catalog_takes_its_number_of_retries_as_text() -> None:
    """As Spark hands over all options; no request is sent yet."""
    keys = {"glue.region": "us-east-1", "glue.access-key-id": "a", "glue.secret-access-key": "b"}
    config = CatalogConfig.of("glue", {"type": "glue", "glue.max-retries": "3", **keys})
    assert type(open_catalog(config)).__name__ == "GlueCatalog"
