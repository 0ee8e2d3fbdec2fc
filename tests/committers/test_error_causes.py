"""Errors of a storage, a catalog or a database are classified as outage or refusal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyiceberg.exceptions
import pytest
import requests
import sqlalchemy as sa
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.hive import HiveCatalog
from servers.s3 import BUCKET, s3_options, s3_server

from penstock.committers import postgres_timeouts as postgres
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.delta.files import delta_files
from penstock.committers.delta.object_store import open_object_store
from penstock.committers.delta.table import load_if_there
from penstock.committers.error_causes import ErrorCause, cause_of, retryable
from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    StoreUnreachableError,
)
from penstock.committers.iceberg.catalog import CatalogConfig, catalog_error
from penstock.committers.store.sql import open_store

OUTAGE, REFUSED, UNKNOWN = ErrorCause.OUTAGE, ErrorCause.REFUSED, ErrorCause.UNKNOWN
CLOSED = "http://127.0.0.1:1"


def error_of(action: Callable[[], object]) -> Exception:
    try:
        action()
    except Exception as error:  # noqa: BLE001  that is what is tested
        return error
    raise AssertionError("no error")


# S3 ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Storage:
    options: dict[str, str]
    bucket: str
    cause: ErrorCause


@pytest.fixture(scope="module", params=["closed port", "no access", "no bucket"])
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    if request.param == "closed port":
        yield Storage({**s3_options(CLOSED), "max_retries": "0"}, BUCKET, OUTAGE)
        return
    with pytest.MonkeyPatch.context() as environment:
        if request.param == "no access":  # after the bucket was created
            environment.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "1")
        with s3_server() as options:
            bucket = "nothing-there" if request.param == "no bucket" else BUCKET
            yield Storage({**options, "max_retries": "0"}, bucket, REFUSED)


def write_by_arrow(storage: Storage) -> None:
    options = storage.options
    filesystem = pafs.S3FileSystem(
        access_key=options["AWS_ACCESS_KEY_ID"],
        secret_key=options["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=options["AWS_ENDPOINT_URL"],
        region="us-east-1",
    )
    with filesystem.open_output_stream(f"{storage.bucket}/file") as file:
        file.write(b"x")


def list_by_delta(storage: Storage) -> None:
    handler = DeltaStorageHandler(f"s3://{storage.bucket}/t", storage.options)
    pafs.PyFileSystem(handler).get_file_info(pafs.FileSelector("", recursive=True))


def list_by_obstore(storage: Storage) -> None:
    store = open_object_store(f"s3://{storage.bucket}/t", storage.options)
    assert store is not None
    store.list().collect()


@pytest.mark.parametrize("action", [write_by_arrow, list_by_delta, list_by_obstore])
def test_refusals_of_s3_are_no_outages(storage: Storage, action: Callable[[Storage], None]) -> None:
    error = error_of(lambda: action(storage))
    assert cause_of(error) is storage.cause, error


def test_a_refused_delta_table_has_its_own_error_class(storage: Storage) -> None:
    uri = f"s3://{storage.bucket}/t"
    for action in (
        lambda: load_if_there(uri, storage.options),
        lambda: list(delta_files(uri, storage.options).walk()),
    ):
        error = error_of(action)
        assert isinstance(error, RetryableError)
        assert isinstance(error, ConfigurationError) is (storage.cause is REFUSED)


def test_a_storage_of_a_catalog_that_does_not_answer_is_no_wrong_configuration(storage: Storage) -> None:
    config = CatalogConfig.of("c", {"type": "rest", "uri": CLOSED})
    error = catalog_error(error_of(lambda: write_by_arrow(storage)), "cannot be read", config)
    assert "install" not in str(error).lower()
    assert isinstance(error, RetryableError)
    assert isinstance(error, AccessRefusedError) is (storage.cause is REFUSED)


# Databases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"username": "nobody-of-this-name"}, ConfigurationError),
        ({"database": "nothing-of-this-name"}, ConfigurationError),
        ({"host": "127.0.0.1", "port": 1, "query": {}}, StoreUnreachableError),
    ],
    ids=["no role", "no database", "closed port"],
)
def test_a_refusal_of_the_store_is_no_outage(
    new_postgres_url: Callable[[], str], change: dict[str, object], kind: type[PenstockError]
) -> None:
    url = sa.make_url(new_postgres_url()).set(**change)  # type: ignore[arg-type]
    error = error_of(lambda: open_store(url.render_as_string(hide_password=False)))
    assert type(error) is kind, error
    assert cause_of(error.__cause__ or error) is (OUTAGE if kind is StoreUnreachableError else REFUSED)


def test_a_right_that_is_missing_in_postgres_is_a_refusal(new_postgres_url: Callable[[], str]) -> None:
    engine = sa.create_engine(new_postgres_url())
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE penstock_without_rights")
        connection.exec_driver_sql("SET ROLE penstock_without_rights")
        error = error_of(lambda: connection.exec_driver_sql("SELECT * FROM pg_authid"))
    engine.dispose()
    assert cause_of(error) is REFUSED, error


def test_a_sqlite_file_that_cannot_be_opened_is_a_refusal(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/no/folder/store.db")
    assert cause_of(error_of(engine.connect)) is REFUSED


# Catalogs ----------------------------------------------------------------------------------------------

GLUE = {"glue.region": "us-east-1", "glue.access-key-id": "a", "glue.secret-access-key": "b"}


def ask_glue(endpoint: str) -> None:
    GlueCatalog("g", **GLUE, **{"glue.endpoint": endpoint, "glue.max-retries": 0}).list_namespaces()


def test_a_refusal_of_a_glue_catalog_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cause_of(error_of(lambda: ask_glue(CLOSED))) is OUTAGE
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "1")
    with s3_server() as options:
        assert cause_of(error_of(lambda: ask_glue(options["AWS_ENDPOINT_URL"]))) is REFUSED


def test_a_metastore_that_is_down_is_an_outage() -> None:
    catalog = HiveCatalog("h", uri="thrift://127.0.0.1:1")
    assert cause_of(error_of(catalog.list_namespaces)) is OUTAGE


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (pyiceberg.exceptions.ServiceUnavailableError("503"), OUTAGE),
        (pyiceberg.exceptions.TooManyRequestsError("429"), OUTAGE),
        (pyiceberg.exceptions.ForbiddenError("403"), REFUSED),
        (pyiceberg.exceptions.UnauthorizedError("401"), REFUSED),
        (requests.exceptions.InvalidURL("no host"), UNKNOWN),
        (requests.exceptions.SSLError("CERTIFICATE_VERIFY_FAILED"), REFUSED),
        (OSError("Azure Error: [] Timeout waiting for socket to read."), OUTAGE),
        (OSError("Azure Error: [AuthenticationFailed] 403 Server failed"), REFUSED),
        (OSError(28, "No space left on device"), OUTAGE),
        (PermissionError(13, "Permission denied"), REFUSED),
        (ValueError("something else"), UNKNOWN),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.value,
)
def test_other_errors(error: Exception, cause: ErrorCause) -> None:
    assert cause_of(error) is cause
    assert retryable(error) is (AccessRefusedError if cause is REFUSED else RetryableError)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("403 Forbidden", AccessRefusedError),
        ("error sending request", RetryableError),
        ("bad name", ConfigurationError),
    ],
)
def test_a_delta_table_is_not_created_for_one_of_three_reasons(
    said: str, kind: type[PenstockError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may read and not write: then only the creation fails."""

    def create(*_: object, **__: object) -> None:
        raise OSError(said)

    monkeypatch.setattr(DeltaTable, "create", create)
    error = error_of(lambda: DeltaTableCommitter(str(tmp_path / "t")).plan(pa.schema({"id": pa.int64()})))
    assert type(error) is kind


def test_a_silent_postgres_is_an_outage(
    new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the connection and answers nothing. The next transaction has a new connection."""
    monkeypatch.setattr(postgres, "ANSWER_TIMEOUT_S", 0.5)
    with open_store(new_postgres_url()) as store:

        def hang() -> None:
            with store.engine.connect() as connection:
                connection.exec_driver_sql("SELECT pg_sleep(30)")

        started = time.monotonic()
        error = error_of(hang)
        assert time.monotonic() - started < 10
        assert cause_of(error) is OUTAGE
        assert "has not responded for" in str(error)
        assert store.streams() == []


def test_a_psycopg_that_cannot_limit_its_waiting_is_warned_of(
    new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr("psycopg.errors._WaitTimeout")
    with open_store(new_postgres_url()) as store:
        assert store.streams() == []
    assert "cannot limit how long it waits" in caplog.text
