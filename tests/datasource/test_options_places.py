"""A location that no later attempt could use is a problem of the options, not an outage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.committers.error_causes import ErrorCause, cause_of
from penstock.committers.errors import ConfigurationError
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.files.options import FilesOptions
from penstock.datasource.hudi.options import HudiOptions
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.lance.options import LanceOptions
from penstock.datasource.paimon.options import PaimonOptions
from penstock.datasource.redis.options import RedisOptions
from penstock.datasource.requests.options import RequestOptions

OF_PATH = (DeltaOptions, FilesOptions, HudiOptions, LanceOptions, PaimonOptions)
OF_CLIENT = (DeltaOptions, HudiOptions, LanceOptions)
"""Those that open the table with the client of S3 and Azure that refuses plain HTTP."""
REDIS = {"url": "redis://h:6379/0", "structure": "set", "key": "rows:{id}", "delivery": "decoupled"}
S3, AZURE = {"path": "s3://bucket/t"}, {"path": "az://container/t"}
HTTP = "http://127.0.0.1:9"


def problem_of(cls: type[DeltaOptions], options: Mapping[str, str]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        cls.parse(options)
    return str(refused.value)


@pytest.mark.parametrize("below", ["", "/t"])
@pytest.mark.parametrize(
    ("cls", "name", "options"),
    [
        *((cls, "path", {}) for cls in OF_PATH),
        (IcebergOptions, "warehouse", {"table": "a.b"}),
        (RedisOptions, "rowLog", REDIS),
    ],
)
def test_a_file_in_place_of_a_folder_is_named(
    cls: type[DeltaOptions], name: str, options: Mapping[str, str], below: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    said = problem_of(cls, {**options, name: f"{file}{below}"})
    assert f"{name}: '{file}' is a file, not a folder." in said


@pytest.mark.parametrize("cls", OF_CLIENT)
@pytest.mark.parametrize(
    ("options", "allow"),
    [
        ({**S3, "storage.AWS_ENDPOINT_URL": HTTP}, "AWS_ALLOW_HTTP"),
        ({**S3, "storage.aws_endpoint": HTTP, "storage.aws_allow_http": "false"}, "AWS_ALLOW_HTTP"),
        ({**AZURE, "storage.AZURE_STORAGE_ENDPOINT": HTTP}, "AZURE_ALLOW_HTTP"),
    ],
)
def test_plain_http_is_refused_with_the_option_that_allows_it(
    cls: type[DeltaOptions], options: Mapping[str, str], allow: str
) -> None:
    assert f'.option("storage.{allow}", "true")' in problem_of(cls, options)
    allowed = {key: value for key, value in options.items() if "allow" not in key}
    assert cls.parse({**allowed, f"storage.{allow.lower()}": "true"}).path == options["path"]
    assert cls.parse({**allowed, "storage.ALLOW_HTTP": "true"}).path == options["path"]


def test_plain_http_can_be_allowed_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", HTTP)
    assert "storage.AWS_ALLOW_HTTP" in problem_of(DeltaOptions, S3)
    DeltaOptions.parse({**S3, "storage.AWS_ENDPOINT": "https://s3.example"})
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert DeltaOptions.parse(S3).path == S3["path"]


def test_the_endpoint_of_a_table_on_the_local_disk_is_not_looked_at() -> None:
    assert DeltaOptions.parse({"path": "/lake/t", "storage.AWS_ENDPOINT_URL": HTTP}).path == "/lake/t"


def test_plain_http_is_refused_for_a_row_log_too() -> None:
    options = {**REDIS, "rowLog": "s3://bucket/log", "storage.AWS_ENDPOINT_URL": HTTP}
    with pytest.raises(ConfigurationError, match="AWS_ALLOW_HTTP"):
        RedisOptions.parse(options)
    parsed: RequestOptions = RedisOptions.parse({**options, "storage.AWS_ALLOW_HTTP": "true"})
    assert parsed.row_log == "s3://bucket/log"


@pytest.mark.parametrize(
    "said",
    [  # of the Delta library, of obstore, and of Lance
        "Generic S3 error; Error performing GET http://h - HTTP error; builder error; URL scheme is not all…",
        "Generic S3 error: Error performing GET http://h in 30.165µs - HTTP error: builder error",
    ],
)
def test_a_delivery_that_may_not_use_plain_http_is_refused_and_no_outage(said: str) -> None:
    assert cause_of(OSError(said)) is ErrorCause.REFUSED
