"""`penstock check` of servers that accept a connection and never answer: it ends, and says which one."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.datasource.plug_ins import BUILT_IN

ENDS_S = 120.0
"""Far more than a check takes: it waits for two seconds."""
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
S3 = {"storage.AWS_ENDPOINT_URL": "http://{at}", "storage.AWS_ALLOW_HTTP": "true"}
AWS = {"region": "us-east-1", "endpointUrl": "http://{at}"}
IN_CI = ("delta", "iceberg", "postgres", "kafka", "http", "opensearch")
"""Of each library and protocol one; `make campaigns` checks the others."""

SILENT = {
    "delta": {"path": "s3://bucket/table", **S3},
    "iceberg": {"table": "a.b", "catalog.type": "rest", "catalog.uri": "http://{at}"},
    "hudi": {"path": "s3://bucket/table", **S3},
    "lance": {"path": "s3://bucket/table.lance", **S3},
    "files": {"path": "s3://bucket/table", **S3},
    "ducklake": {"catalog": "postgresql://user:word@{at}/database", "table": "rows"},
    "postgres": {"url": "postgresql://user:word@{at}/database", "dbtable": "rows"},
    "mysql": {"url": "mysql://user:word@{at}/database", "dbtable": "rows"},
    "clickhouse": {"url": "http://user:word@{at}/database", "dbtable": "rows"},
    "sql": {"url": "postgresql+psycopg://user:word@{at}/database", "dbtable": "rows"},
    "dynamodb": {"table": "rows", "keyColumns": "id", **AWS},
    "firehose": {"stream": "rows", **AWS},
    "kinesis": {"stream": "rows", **AWS},
    "sqs": {"queue": "rows", **AWS},
    "opensearch": {"url": "http://{at}", "index": "rows"},
    "elasticsearch": {"url": "http://{at}", "index": "rows"},
    "redis": {"url": "redis://{at}", "key": "rows:{{id}}", "structure": "row"},
    "nats": {"url": "nats://{at}", "subject": "rows"},
    "kafka": {
        "kafka.bootstrap.servers": "{at}",
        "topic": "rows",
        "valueFormat": "json",
        "rowLog": "{folder}/log",
    },
    "http": {"url": "http://{at}/rows"},
}
"""Options of each destination; `{at}` is the address."""
SHARED = {
    "the manifest store": {"store": "postgresql+psycopg://user:word@{at}/database"},
    "the checkpoint": {"checkpointLocation": "s3a://bucket/checkpoint", **S3},
}


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of the server."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as accepted:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted.enter_context(server.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_each_destination_is_tried() -> None:
    """Except for Paimon, whose libraries exclude those of others, and DuckDB, which is a file."""
    assert set(SILENT) == set(BUILT_IN) - {"paimon", "duckdb"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [kind if kind in IN_CI else pytest.param(kind, marks=pytest.mark.campaign) for kind in SILENT],
)
def test_a_check_of_a_silent_server_ends_and_names_it(kind: str, silent: str, tmp_path: Path) -> None:
    ended = checked(kind, SILENT[kind], silent, tmp_path)
    if kind == "http":  # only rows would tell whether an endpoint answers
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return
    (error,) = errors(ended)
    assert "gave no answer in 2 seconds" in error
    assert error.startswith("error    table: ")


@pytest.mark.slow
@pytest.mark.parametrize("what", SHARED)
def test_a_silent_store_or_checkpoint_is_told_apart(what: str, silent: str, tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "table"), **SHARED[what]}
    unanswered = [one for one in errors(checked("delta", given, silent, tmp_path)) if "gave no answer" in one]
    assert len(unanswered) == 1
    assert what in unanswered[0].lower()


def checked(kind: str, options: dict[str, str], at: str, folder: Path) -> subprocess.CompletedProcess[str]:
    given = [f"-o{key}={text.format(at=at, folder=folder)}" for key, text in options.items()]
    command = [sys.executable, "-m", "penstock.cli", "check", f"penstock.{kind}", *given]
    return subprocess.run(
        [*command, "--schema", "id BIGINT", "--wait", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=ENDS_S,
        env={**os.environ, **KEYS, "COLUMNS": "1000"},
    )


def errors(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of the errors."""
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return [line for line in ended.stdout.splitlines() if line.startswith("error")]
