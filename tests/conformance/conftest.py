"""Services for `penstock.http` and the destinations on AWS, one for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.aws import KEY, SECRET, AwsServer, aws_server
from servers.http_rows import HttpRows, http_rows


@pytest.fixture(scope="module")
def http_server() -> Iterator[HttpRows]:
    with http_rows() as server:
        yield server


@pytest.fixture
def http_service(http_server: HttpRows) -> HttpRows:
    """The service without rows, and without faults."""
    http_server.set()
    http_server.clear()
    return http_server


@pytest.fixture(scope="module")
def aws_moto() -> Iterator[AwsServer]:
    with aws_server() as server:
        yield server


@pytest.fixture
def aws_service(aws_moto: AwsServer, monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    """The service without throttling. Credentials are in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    aws_moto.throttle()
    return aws_moto
