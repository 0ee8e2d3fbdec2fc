"""Runs an S3 server on the loopback in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import boto3
from servers.ports import free_port, wait_for
from servers.request_log import RequestLog

BUCKET = "lake"


@contextmanager
def s3_server(module: str = "moto.server", log: IO[bytes] | None = None) -> Iterator[dict[str, str]]:
    """Start a server with an empty bucket `lake` and yield its storage options.

    It needs a separate process, because some calls of the Delta library keep Python's lock while they wait.

    Args:
        module: the Python module that runs the server
        log: receives a line for each request
    """
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", module, "-H", "127.0.0.1", "-p", str(port)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.DEVNULL,
        stderr=log or subprocess.DEVNULL,
    )
    try:
        wait_for(port, server)
        options = s3_options(f"http://127.0.0.1:{port}")
        s3_client(options).create_bucket(Bucket=BUCKET)
        yield options
    finally:
        server.kill()
        server.wait()


@contextmanager
def logged_s3_server(folder: Path) -> Iterator[tuple[dict[str, str], RequestLog]]:
    """Start an `s3_server` that logs to a file in the folder."""
    log = folder / "requests.log"
    with log.open("wb") as log_file, s3_server(log=log_file) as options, log.open("rb") as lines:
        yield options, RequestLog(lines)


def s3_options(url: str) -> dict[str, str]:
    """Return storage options for the Delta library and polars."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def s3_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the storage properties for Iceberg."""
    return {
        "s3.endpoint": options["AWS_ENDPOINT_URL"],
        "s3.access-key-id": options["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": options["AWS_SECRET_ACCESS_KEY"],
        "s3.region": options["AWS_REGION"],
    }


def s3_names(options: dict[str, str], prefix: str = "") -> list[str]:
    pages = s3_client(options).get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [found["Key"] for page in pages for found in page.get("Contents", ())]


def s3_client(options: dict[str, str]) -> Any:
    """Return a client of the server that does not use the table libraries."""
    return boto3.client(
        "s3",
        endpoint_url=options["AWS_ENDPOINT_URL"],
        aws_access_key_id=options["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=options["AWS_SECRET_ACCESS_KEY"],
        region_name=options["AWS_REGION"],
    )
