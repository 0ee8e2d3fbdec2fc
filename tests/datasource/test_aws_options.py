"""Options of the destinations on AWS: what is missing or wrong is said before anything moves."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.aws import NAMED_BY, AwsKind

from penstock.committers.contract import StreamKey
from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.datasource.table_access import TableAccess

SECRETS = {"accessKeyId": "geheim-1", "secretAccessKey": "geheim-2", "sessionToken": "geheim-3"}


@pytest.fixture(params=list(NAMED_BY))
def aws(request: pytest.FixtureRequest) -> AwsKind:
    return AwsKind(request.param)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"region": "Ireland"}, "region='Ireland': must be a region such as eu-west-1"),
        ({"region": "eu-west-1/x"}, "must be a region"),
        ({"endpointUrl": "ftp://h"}, "endpointUrl='ftp://h': must be a URL such as"),
        ({"endpointUrl": "https://geheim@h/"}, "give them as accessKeyId and secretAccessKey"),
        ({"endpointUrl": "https://h/path/"}, "must have no path and no query"),
        ({"endpointUrl": "https://h/?a=b"}, "must have no path and no query"),
        ({"accessKeyId": "geheim"}, "accessKeyId and secretAccessKey belong together"),
        ({"secretAccessKey": "geheim"}, "accessKeyId and secretAccessKey belong together"),
        ({"sessionToken": "geheim"}, "sessionToken needs accessKeyId"),
        ({"maxBatchBytes": "1kb"}, "must not be larger than maxBatchBytes"),
        ({"path": "/x"}, "path is not an option"),
        ({"targetFileSize": "1mb"}, "targetFileSize is an option of lake tables"),
        ({"regoin": "x"}, "Did you mean region"),
    ],
)
def test_a_wrong_option_is_named_and_no_secret_is_shown(
    aws: AwsKind, options: Mapping[str, str], said: str
) -> None:
    with pytest.raises(ConfigurationError) as failure:
        aws.service.options.parse(aws.given(**options))
    assert said in str(failure.value)
    assert "geheim" not in str(failure.value)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("kinesis", {"stream": "arn:aws:kinesis:x"}, "not an ARN or a URL"),
        ("firehose", {"stream": "a" * 65}, "not an ARN or a URL"),
        ("dynamodb", {"table": "ab"}, "not an ARN or a URL"),
        ("dynamodb", {"keyColumns": "a, b, c"}, "must be the partition key or"),
        ("sqs", {"queue": "https://sqs/1/q"}, "not an ARN or a URL"),
        ("sqs", {"queue": f"{'q' * 76}.fifo"}, "not an ARN or a URL"),
        ("sqs", {"queue": "q.fifo"}, "messageGroupId is missing, which FIFO queues need"),
    ],
)
def test_names_are_those_that_the_service_accepts(kind: str, options: Mapping[str, str], said: str) -> None:
    aws = AwsKind(kind)
    with pytest.raises(ConfigurationError) as failure:
        aws.service.options.parse(aws.given(**options))
    assert said in str(failure.value)


def test_all_missing_options_are_named(aws: AwsKind) -> None:
    with pytest.raises(ConfigurationError) as failure:
        aws.service.options.parse({})
    for name in aws.given():
        assert f"{name} is missing" in str(failure.value)


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("kinesis", (500, 5 << 20, 1 << 20)),
        ("firehose", (500, 4 << 20, 1000 << 10)),
        ("dynamodb", (25, 16 << 20, 400 << 10)),
        ("sqs", (10, 1 << 20, 1 << 20)),
    ],
)
def test_limits_are_those_of_the_service(kind: str, limits: tuple[int, int, int]) -> None:
    aws = AwsKind(kind)
    found = aws.service.options.parse(aws.given()).limits
    assert (found.batch_entries_max, found.batch_bytes_max, found.record_bytes_max) == limits


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        (None, "://us-east-1/flights"),
        ("HTTP://LocalHost:80", "+http://localhost/us-east-1/flights"),
        ("http://localhost/", "+http://localhost/us-east-1/flights"),
        ("https://h:4566", "+https://h:4566/us-east-1/flights"),
    ],
)
def test_a_destination_has_one_address(aws: AwsKind, endpoint: str | None, address: str) -> None:
    given = aws.given(**({"endpointUrl": endpoint} if endpoint else {}))
    assert aws.service.sink({**given, **SECRETS}).table_uri == aws.kind + address


def test_secrets_are_not_shown_and_not_stored(aws: AwsKind) -> None:
    sink = aws.data_source({**aws.given(), **SECRETS}).sink()
    shown = repr(sink) + repr(sink.options) + repr(sink.open_table()) + repr(sink.requests)  # type: ignore[attr-defined]
    assert "geheim" not in shown
    assert sink.options.given == aws.given()


def test_tasks_of_a_decoupled_query_get_no_credentials(
    aws: AwsKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a coupled one do, as they send."""
    requests: Any = aws.service.sink({**aws.given(), **SECRETS}).requests
    monkeypatch.setattr(type(requests), "check_destination", lambda *_: None)
    plans = [
        aws.service.sink({**aws.given(), **SECRETS, "rowLog": str(tmp_path / "log"), "delivery": delivery})
        .open_table()
        .plan_batch(pa.schema({"id": pa.int64()}), "append", 0)
        for delivery in ("coupled", "decoupled")
    ]
    assert [b"geheim" in pickle.dumps(plan) for plan in plans] == [True, False]


@pytest.mark.parametrize(("delivery", "calls"), [("coupled", 3), ("decoupled", 1)])
def test_a_destination_is_looked_up_for_each_batch_or_once_in_a_process(
    aws: AwsKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivery: str, calls: int
) -> None:
    """A decoupled query does not need it."""
    asked = []
    sink: Any = aws.service.sink(aws.given(rowLog=str(tmp_path / "log"), delivery=delivery))
    monkeypatch.setattr(type(sink.requests), "check_destination", lambda *_: asked.append(1))
    for batch_id in range(3):
        sink.open_table().plan_batch(pa.schema({"id": pa.int64()}), "append", batch_id)
    assert len(asked) == calls


def test_the_delivery_process_gives_credentials_with_storage_options(aws: AwsKind) -> None:
    access = TableAccess.parse([f"{key}={value}" for key, value in SECRETS.items()] + ["AWS_REGION=x"], None)
    sink: Any = aws.destination.sink(StreamKey("q", f"{aws.kind}://us-east-1/flights"), aws.given(), access)
    assert (sink.options.access_key_id, sink.options.secret_access_key) == ("geheim-1", "geheim-2")
    assert sink.options.session_token == "geheim-3"
    assert sink.options.storage_options == {"AWS_REGION": "x"}


def test_the_client_is_an_extra(aws: AwsKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    with pytest.raises(
        ConfigurationError, match=rf"penstock.{aws.kind} needs(.|\n)*pip install 'penstock\[aws\]'"
    ):
        aws.data_source(aws.given()).sink()


@pytest.mark.parametrize(
    ("kind", "options", "rows", "said"),
    [
        ("kinesis", {"partitionKey": "k"}, {"id": pa.int64()}, "partitionKey names the column 'k'"),
        ("kinesis", {"partitionKey": "k"}, {"k": pa.float64()}, "cast it to STRING"),
        ("sqs", {"messageGroupId": "g"}, {"id": pa.int64()}, "messageGroupId names the column 'g'"),
        ("dynamodb", {}, {"x": pa.int64()}, "keyColumns names the column 'id'"),
        ("dynamodb", {}, {"id": pa.bool_()}, "cannot be a key"),
        ("dynamodb", {}, {"id": pa.list_(pa.int64())}, "cannot be a key"),
        ("firehose", {"idColumn": "i"}, {"id": pa.int64()}, "idColumn names the column 'i'"),
        ("dynamodb", {}, {"id": pa.int64(), "m": pa.map_(pa.int64(), pa.int64())}, "m is a map whose keys"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_any_row_moves(
    kind: str, options: Mapping[str, str], rows: Mapping[str, pa.DataType], said: str
) -> None:
    aws = AwsKind(kind)
    with pytest.raises(SchemaMismatchError) as failure:
        aws.service.sink(aws.given(**options)).open_table().plan_batch(pa.schema(rows), "append", 0)
    assert said in str(failure.value)


@pytest.mark.parametrize(
    ("kind", "options", "rows", "said"),
    [
        ("kinesis", {"partitionKey": "k"}, {"k": ["a", None]}, "NULL in the column 'k'"),
        ("kinesis", {"partitionKey": "k"}, {"k": ["a", ""]}, "A partition key is empty"),
        ("kinesis", {"partitionKey": "k"}, {"k": ["x" * 257]}, "has 257 characters"),
        ("sqs", {"messageGroupId": "g"}, {"g": ["a", "b c"]}, "A message group is not 1 to 128"),
        ("sqs", {"messageGroupId": "g"}, {"g": [None]}, "NULL in the column 'g'"),
        ("dynamodb", {}, {"id": ["a", None]}, "NULL or an empty value in the column 'id'"),
        ("dynamodb", {}, {"id": [""]}, "NULL or an empty value in the column 'id'"),
        ("dynamodb", {}, {"id": [1], "x": [float("nan")]}, "A value in x cannot be sent to DynamoDB"),
        ("dynamodb", {}, {"id": [1], "x": [1e-200]}, "numbers are from 1E-130"),
        ("dynamodb", {}, {"id": [1], "x": [[1.0, float("inf")]]}, "A value in x cannot be sent"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_the_task(
    kind: str, options: Mapping[str, str], rows: Mapping[str, list[Any]], said: str
) -> None:
    """Decoupled, before they are in the row log."""
    aws = AwsKind(kind)
    check = aws.service.sink(aws.given(**options)).requests.checker()
    with pytest.raises(SchemaMismatchError) as failure:
        pickle.loads(pickle.dumps(check))(pa.record_batch(dict(rows)))
    assert said in str(failure.value)
