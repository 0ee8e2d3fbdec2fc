"""Options of destinations that take requests: what is missing or wrong is said before anything moves."""

from __future__ import annotations

import base64
import pickle
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis.asyncio
from tests.support.aws import NAMED_BY, given
from tests.support.service_places import service_of

from penstock.committers.contract import StreamKey
from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.datasource.nats.options import NatsOptions
from penstock.datasource.options.declaring import options_of
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.datasource.redis.options import RedisOptions
from penstock.datasource.requests.sink import RequestSink
from penstock.datasource.search.elasticsearch import ElasticsearchOptions
from penstock.datasource.stored.table_access import TableAccess

SEARCH_URL = "https://search.example.com:9200"
AWS, SEARCH = tuple(NAMED_BY), ("opensearch", "elasticsearch")
GIVEN: Mapping[str, dict[str, str]] = {
    **{kind: given(kind) for kind in AWS},
    "http": {"url": "https://api.example.com/rows"},
    "nats": {"url": "nats://h:4222", "subject": "rows.{id}"},
    "redis": {"url": "redis://h:6379/0", "structure": "set", "key": "rows:{id}"},
    **{kind: {"url": SEARCH_URL, "index": "flights"} for kind in SEARCH},
}
"""Of each destination the options that it needs."""
USER = {"username": "geheim-1", "password": "geheim-2"}
KEYS = {"accessKeyId": "geheim-1", "secretAccessKey": "geheim-2", "sessionToken": "geheim-3"}
SECRETS = [
    *[(kind, KEYS) for kind in AWS],
    *[(kind, USER) for kind in ("http", "nats", "redis", *SEARCH)],
    ("http", {"header.x-key": "geheim", "bearerToken": "geheim"}),
    *[("nats", {secret: "geheim"}) for secret in ("token", "nkeySeed", "credentials")],
    ("elasticsearch", {"apiKey": "geheim"}),
]
KINDS = pytest.mark.parametrize("kind", GIVEN)
IDS = pa.schema({"id": pa.int64()})
Table = list[tuple[Mapping[str, str], str]]


def sink_of(kind: str, **options: str) -> RequestSink:
    return service_of(kind).sink({**GIVEN[kind], **options})


def each(kinds: tuple[str, ...], table: Table) -> list[tuple[str, Mapping[str, str], str]]:
    return [(kind, options, said) for kind in kinds for options, said in table]


def wrong(option: str, said: str, *values: str) -> Table:
    """Values of one option, all of which are refused for the same reason."""
    return [({option: value}, said) for value in values]


def alone(said: str, *options: str) -> Table:
    """Each of these options without the other one."""
    return [({option: "geheim"}, said) for option in options]


WRONG_EVERYWHERE: Table = [
    ({"path": "/x"}, "path is not an option"),
    ({"targetFileSize": "1mb"}, "targetFileSize is an option of lake tables"),
]
WRONG_AWS: Table = [
    ({"region": "Ireland"}, "region='Ireland': must be a region such as eu-west-1"),
    ({"region": "eu-west-1/x"}, "must be a region"),
    ({"endpointUrl": "ftp://h"}, "endpointUrl='ftp://h': must be a URL such as"),
    *wrong("endpointUrl", "must have no path and no query", "https://h/path/", "https://h/?a=b"),
    *alone("accessKeyId and secretAccessKey belong together", "accessKeyId", "secretAccessKey"),
    ({"sessionToken": "geheim"}, "sessionToken needs accessKeyId"),
    ({"maxBatchBytes": "1kb"}, "must not be larger than maxBatchBytes"),
    ({"regoin": "x"}, "Did you mean region"),
]
WRONG_HTTP: Table = [
    ({"url": ""}, "url"),
    ({"url": "ftp://example.com/x"}, "url='ftp://example.com/x': must be a URL such as"),
    *wrong("url", "must be a URL such as", "https:///x", "https://h:port/", "https://example.com/a b"),
    ({"url": "https://example.com/#x"}, "must not have a fragment"),
    *wrong("method", "must be one of POST, PUT, PATCH", "PO ST", "GET", "HEAD", "CONNECT", "DELETE", "FOO"),
    ({"format": "xml"}, "must be one of json, ndjson, row"),
    ({"idempotencyHeader": "a b"}, "must be the name of a header"),
    ({"idempotencyHeader": "X-Id", "header.x-id": "1"}, "name the same header"),
    ({"header.a b": "c"}, "header.a b: must be a name"),
    ({"header.a": "c\r\nHost: x"}, "header.a: must be a name"),
    ({"password": "geheim"}, "password needs username"),
    ({"username": "me", "bearerToken": "geheim"}, "bearerToken and username contradict each other"),
    ({"bearerToken": "geheim", "header.Authorization": "x"}, "contradict each other"),
    ({"maxRecordBytes": "5mb"}, "maxRecordBytes (5,242,880 bytes) must not be larger than maxBatchBytes"),
    ({"maxBatchBytes": "64mb"}, "must not be larger than maxBufferedBytes"),
    ({"requestTimeout": "0s"}, "requestTimeout must be at least 1s"),
    ({"maxRowsPerSecond": "10"}, "parallelTasks is missing"),
    ({"badRows": "ignore"}, "must be one of fail, drop, deadLetter"),
    ({"partitionby": "a"}, "partitionBy is an option of lake tables"),
    ({"ulr": "x"}, "Did you mean url"),
]
WRONG_NATS: Table = [
    *wrong("url", "a URL such as nats://", "http://h", "nats://h/x", "nats://h:port", "nats://a,,nats://b"),
    ({"url": "nats://a,tls://b"}, "must have nats:// in all URLs"),
    ({"subject": "rows.{id"}, "must be a text with columns in braces"),
    *wrong("subject", "must be a subject such as", "rows..{id}", "rows.*", "rows.>", "rows {id}"),
    *wrong("subject", "does not begin with $", "$JS.API.{id}", "_INBOX.{id}", "_INBOX"),
    ({"expectedStream": "a.b"}, "must be the name of a stream"),
    ({"headers": "x"}, "must be a JSON object of strings"),
    ({"headers": '{"a b": "x"}'}, "not the name of a header"),
    *wrong("headers", "headers of NATS itself", '{"Nats-Rollup": "all"}', '{"nats-msg-id": "1"}'),
    ({"headers": '{"a": " x"}'}, "has spaces around the value of 'a'"),
    ({"headers": '{"a": "x\\ny"}'}, "control characters"),
    ({"headers": '{"a": "{x"}'}, "must be a text with columns in braces"),
    ({"exactlyOnce": "true"}, "exactlyOnce needs delivery=decoupled or idColumn"),
    *alone("username and password need each other", *USER),
    ({"token": "geheim", "nkeySeed": "geheim"}, "token and nkeySeed are different ways to log in"),
    ({"caFile": "/ca.pem"}, "caFile needs TLS"),
]
REDIS_ONCE = {"structure": "stream", "key": "rows", "exactlyOnce": "true"}
WRONG_REDIS: Table = [
    *wrong("url", "a URL such as redis://", "http://h", "redis://h/x", "redis://h:port", "redis://h/0?db=1"),
    ({"structure": "zset"}, "must be one of set, hash, stream, list"),
    ({"key": "rows:{id"}, "must be a text with columns in braces"),
    *wrong("key", "must be a text with the names of columns in braces", "rows:{}", "rows:{id:>3}"),
    ({"key": "rows"}, "is the same for all rows"),
    ({"field": "{id}"}, "field is an option of structure=hash"),
    ({"structure": "hash"}, "field is missing"),
    ({"structure": "hash", "key": "rows", "field": "x"}, "is the same for all rows"),
    ({"maxLength": "5"}, "maxLength is an option of structure=stream"),
    ({"exactlyOnce": "true", "delivery": "decoupled"}, "exactlyOnce is an option of streams and lists"),
    (REDIS_ONCE, "exactlyOnce needs delivery=decoupled"),
    ({**REDIS_ONCE, "delivery": "decoupled", "maxInFlightRequests": "4"}, "sends one request at a time"),
    ({"username": "geheim"}, "username needs password"),
]
WRONG_SEARCH: Table = [
    ({"url": "ftp://h"}, "must be a URL such as https://search.example.com:9200"),
    ({"url": "https://h/?a=b"}, "must have no query"),
    *wrong("index", "must be the name of one index", "Flights", "a,b", "a*", "_all", "..", "é" * 128),
    ({"operation": "update"}, "must be one of index, create"),
    ({"operation": "create"}, "operation=create needs idColumn"),
    ({"pipeline": "_none"}, "must be the name of an ingest pipeline"),
    *alone("username and password belong together", *USER),
    ({"maxRecordBytes": "11mb"}, "must not be larger than maxBatchBytes"),
    ({"indx": "x"}, "Did you mean index"),
]


UPSERT = {"writeMode": "upsert", "keys": "id"}
HTTP_BY_KEY = {**UPSERT, "url": "https://h/{id}", "format": "row"}
CHANGEABLE = ("dynamodb", "http", "redis", *SEARCH)
"""Those that replace and delete by key."""
APPENDING = tuple(kind for kind in GIVEN if kind not in CHANGEABLE)
WRONG_UPSERTS: Table = [
    ({"writeMode": "upsert"}, "keys is missing"),
    ({"writeMode": "merge"}, "must be one of append, upsert"),
    ({"deleteWhen": "op = 'd'"}, "deleteWhen: only a query with writeMode=upsert has it"),
    ({**UPSERT, "idColumn": "id"}, "idColumn: with writeMode=upsert"),
    ({**UPSERT, "dropColumns": "ID"}, "dropColumns contains id of keys"),
    ({**UPSERT, "lateRows": "ignore"}, "lateRows=ignore needs orderBy"),
    ({**UPSERT, "tombstonesFor": "1h"}, "tombstonesFor"),
    ({"updateColumns": "given"}, "updateColumns: only a query with writeMode=upsert has it"),
]
NO_VERSIONS: Table = [
    ({**UPSERT, "orderBy": "n", "lateRows": "ignore"}, "has no version of a row to compare")
]
LATE = {**UPSERT, "orderBy": "n", "lateRows": "ignore"}
STREAM = {**UPSERT, "structure": "stream", "key": "rows"}


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        *each(tuple(GIVEN), WRONG_EVERYWHERE),
        *each(APPENDING, wrong("writeMode", "leave writeMode out", "upsert")),
        *each(CHANGEABLE, WRONG_UPSERTS),
        *each(("dynamodb", "http", "redis"), NO_VERSIONS),
        ("dynamodb", {**UPSERT, "keys": "id, day"}, "keys=id, day, and keyColumns has the columns id."),
        ("redis", {**UPSERT, "key": "rows:{day}"}, "keys=id, and key has the columns day."),
        ("redis", {**UPSERT, "structure": "hash", "field": "{day}"}, "key and field has the columns id, day"),
        ("redis", STREAM, "structure=stream only appends"),
        ("http", UPSERT, "writeMode=upsert needs requests of one row"),
        ("http", {**UPSERT, "format": "row"}, "keys=id, and url has the columns none."),
        (
            "http",
            {**HTTP_BY_KEY, "deleteMethod": "post"},
            "deleteMethod=POST is also the method of other rows",
        ),
        ("http", {**HTTP_BY_KEY, "deleteMethod": "GET"}, "must be one of DELETE, POST, PUT, PATCH"),
        ("http", {"deleteMethod": "DELETE"}, "deleteMethod: only a query with writeMode=upsert"),
        *each(
            SEARCH,
            [
                ({**UPSERT, "operation": "create"}, "operation=create only appends"),
                ({**UPSERT, "routing": "day"}, "routing=day must be one of keys"),
                ({**LATE, "orderBy": "n, m"}, "lateRows=ignore needs one column in orderBy"),
                ({**LATE, "tombstonesFor": "1h"}, "index.gc_deletes"),
            ],
        ),
        *each(AWS, WRONG_AWS),
        ("kinesis", {"stream": "arn:aws:kinesis:x"}, "not an ARN or a URL"),
        ("firehose", {"stream": "a" * 65}, "not an ARN or a URL"),
        ("dynamodb", {"table": "ab"}, "not an ARN or a URL"),
        ("dynamodb", {"keyColumns": "a, b, c"}, "must be the partition key or"),
        ("sqs", {"queue": "https://sqs/1/q"}, "not an ARN or a URL"),
        ("sqs", {"queue": f"{'q' * 76}.fifo"}, "not an ARN or a URL"),
        ("sqs", {"queue": "q.fifo"}, "messageGroupId is missing, which FIFO queues need"),
        ("kinesis", {"maxBatchSize": "501"}, "must be a whole number from 1 to 500"),
        ("sqs", {"maxBatchSize": "11"}, "must be a whole number from 1 to 10"),
        *each(("http",), WRONG_HTTP),
        *each(("nats",), WRONG_NATS),
        *each(("redis",), WRONG_REDIS),
        *each(SEARCH, WRONG_SEARCH),
    ],
)
def test_a_wrong_option_is_named_and_no_secret_is_shown(
    kind: str, options: Mapping[str, str], said: str
) -> None:
    with pytest.raises(ConfigurationError) as failure:
        service_of(kind).options.parse({**GIVEN[kind], **options})
    assert said in str(failure.value)
    assert "geheim" not in str(failure.value)


@KINDS
@pytest.mark.parametrize("secret", ["me:geheim@h", "geheim@h", "h/?token=geheim"])
def test_a_secret_in_a_url_is_one_problem_that_names_the_options_for_it(kind: str, secret: str) -> None:
    name = "url" if "url" in GIVEN[kind] else "endpointUrl"
    scheme = GIVEN[kind].get("url", "https:").partition(":")[0]
    with pytest.raises(ConfigurationError) as failure:
        service_of(kind).options.parse({**GIVEN[kind], name: f"{scheme}://{secret}"})
    _, *problems = str(failure.value).splitlines()
    (problem,) = problems
    assert f"{name}=" in problem
    assert "must not contain a user, a password" in problem
    options = {option.name for option in options_of(service_of(kind).options) if option.is_secret}
    assert options & set(re.findall(r"\w+", problem.partition("give")[2]))
    assert "geheim" not in problem


AWS_ADDRESSES = [
    ({}, "://us-east-1/flights"),
    ({"endpointUrl": "HTTP://LocalHost:80"}, "+http://localhost/us-east-1/flights"),
    ({"endpointUrl": "http://localhost/"}, "+http://localhost/us-east-1/flights"),
    ({"endpointUrl": "https://h:4566"}, "+https://h:4566/us-east-1/flights"),
]
SEARCH_ADDRESSES = [
    ({"url": "HTTPS://Search.example.com:9200/"}, "+https://search.example.com:9200/flights"),
    ({"url": "http://h:80"}, "+http://h/flights"),
    ({"url": "https://h/Proxy/"}, "+https://h/Proxy/flights"),
]


@KINDS
def test_all_missing_options_are_named(kind: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        service_of(kind).options.parse({})
    for name in GIVEN[kind]:
        assert f"{name} is missing" in str(failure.value)


@pytest.mark.parametrize(
    ("kind", "options", "address"),
    [
        *[(kind, {**options, **KEYS}, kind + address) for kind in AWS for options, address in AWS_ADDRESSES],
        ("http", {"url": "HTTPS://API.Example.com:443"}, "https://api.example.com/"),
        ("http", {"url": "http://h:80/A?b=C"}, "http://h/A?b=C"),
        ("http", {"url": "http://h:8080/"}, "http://h:8080/"),
        ("http", {"url": "http://[::1]:80/x"}, "http://[::1]/x"),
        ("nats", {"url": "NATS://Host"}, "nats://host:4222/rows.{id}"),
        ("nats", {"url": "tls://host:1/"}, "tls://host:1/rows.{id}"),
        ("nats", {"url": "nats://[::1]"}, "nats://[::1]:4222/rows.{id}"),
        ("nats", {"url": "nats://b:1 , nats://a,nats://b:1"}, "nats://a:4222,nats://b:1/rows.{id}"),
        ("nats", {"subject": "orders.{id}"}, "nats://h:4222/orders.{id}"),
        ("redis", {"url": "REDIS://Host"}, "redis://host:6379/0/set/rows:{id}"),
        ("redis", {"url": "rediss://host:1/07"}, "rediss://host:1/7/set/rows:{id}"),
        ("redis", {"url": "redis://[::1]/"}, "redis://[::1]:6379/0/set/rows:{id}"),
        ("redis", {"key": "orders:{id}"}, "redis://h:6379/0/set/orders:{id}"),
        *[
            (kind, {**options, **USER}, kind + address)
            for kind in SEARCH
            for options, address in SEARCH_ADDRESSES
        ],
    ],
)
def test_a_destination_has_one_address(kind: str, options: dict[str, str], address: str) -> None:
    assert sink_of(kind, **options).table_uri == address


@pytest.mark.parametrize(("kind", "secrets"), SECRETS)
def test_secrets_are_not_shown_and_not_stored(kind: str, secrets: dict[str, str]) -> None:
    more = {"checkpointLocation": "/c"}
    data_source = load(load(BUILT_IN[kind]).data_source)
    sink = data_source({**GIVEN[kind], **secrets, **more, "storage.key": "geheim"}).sink()
    assert "geheim" in str(sink.options.storage_options)
    assert "geheim" not in repr(sink) + repr(sink.options) + repr(sink.open_table()) + repr(sink.requests)
    assert sink.options.given == {**GIVEN[kind], **more, "rowLog": "/c/row-log"}


@pytest.mark.parametrize(("kind", "secrets"), SECRETS)
def test_what_a_service_says_is_shown_without_the_secrets_of_the_options(
    kind: str, secrets: dict[str, str]
) -> None:
    """Short values are masked as whole words: a service quotes headers that are no secrets."""
    more = {"storage.secret_key": "geheim-4", "storage.region": "eu-west-1"}
    if kind == "http":
        more |= {"header.content-type": "application/cloudevents+json", "header.x-version": "17"}
    known = sink_of(kind, **secrets, **more).options.secrets
    pair = base64.b64encode(":".join(USER.values()).encode()).decode() if secrets == USER else ""
    said = known.mask(f"eu-west-1 cloudevents Basic {pair} {' '.join(secrets.values())} geheim-4")
    assert "geheim" not in said
    assert pair == "" or pair not in said
    assert said.startswith("eu-west-1 cloudevents Basic ")


@pytest.mark.parametrize(("kind", "secrets"), SECRETS)
def test_tasks_of_a_decoupled_query_get_no_credentials(
    kind: str, secrets: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a coupled one do, as they send."""
    given = {**secrets, "rowLog": str(tmp_path / "log")}
    requests = type(sink_of(kind, **given).requests)
    if kind != "http":  # whose endpoint nobody can check
        monkeypatch.setattr(requests, "check_destination", lambda *_: None)
    plans = [
        sink_of(kind, **given, delivery=delivery).open_table().plan_batch(IDS, "append", 0)
        for delivery in ("coupled", "decoupled")
    ]
    assert [b"geheim" in pickle.dumps(plan) for plan in plans] == [True, False]


@KINDS
def test_the_client_is_an_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, service_of(kind).library, None)
    extra = "aws" if kind in AWS else kind
    with pytest.raises(
        ConfigurationError, match=rf"penstock.{kind} needs(.|\n)*pip install 'penstock\[{extra}\]'"
    ):
        load(load(BUILT_IN[kind]).data_source)(GIVEN[kind]).sink()


# Rows ------------------------------------------------------------------------------------------------

COLUMNS_OF_AWS = [
    ("kinesis", {"partitionKey": "k"}, {"id": pa.int64()}, "partitionKey names the column 'k'"),
    ("kinesis", {"partitionKey": "k"}, {"k": pa.float64()}, "cast it to STRING"),
    ("sqs", {"messageGroupId": "g"}, {"id": pa.int64()}, "messageGroupId names the column 'g'"),
    ("dynamodb", {}, {"x": pa.int64()}, "keyColumns names the column 'id'"),
    ("dynamodb", {}, {"id": pa.bool_()}, "cannot be a key"),
    ("dynamodb", {}, {"id": pa.list_(pa.int64())}, "cannot be a key"),
    ("firehose", {"idColumn": "i"}, {"id": pa.int64()}, "idColumn names the column 'i'"),
    ("dynamodb", {}, {"id": pa.int64(), "m": pa.map_(pa.int64(), pa.int64())}, "m is a map whose keys"),
]
COLUMNS_OF_SEARCH = [
    ({"routing": "r"}, {"id": pa.int64()}, "routing names the column 'r'"),
    ({"idColumn": "i"}, {"id": pa.int64()}, "idColumn names the column 'i'"),
    ({}, {"_id": pa.int64()}, "The column '_id' cannot be a field"),
    ({}, {"a..b": pa.int64()}, "The column 'a..b' cannot be a field"),
    ({}, {" ": pa.int64()}, "The column ' ' cannot be a field"),
    ({}, {"m": pa.map_(pa.int64(), pa.int64())}, "m is a map whose keys"),
]


@pytest.mark.parametrize(
    ("kind", "options", "rows", "said"),
    [
        *COLUMNS_OF_AWS,
        ("http", {}, {"m": pa.map_(pa.int64(), pa.int64())}, "m is a map whose keys"),
        ("http", {"idColumn": "id"}, {"x": pa.int64()}, "idColumn names the column 'id'"),
        *((kind, *row) for kind in SEARCH for row in COLUMNS_OF_SEARCH),
    ],
)
@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
def test_columns_that_do_not_fit_are_refused_before_any_row_moves(
    kind: str,
    options: dict[str, str],
    rows: Mapping[str, pa.DataType],
    said: str,
    delivery: str,
    tmp_path: Path,
) -> None:
    given = {**options, "delivery": delivery, "rowLog": str(tmp_path / "log")}
    with pytest.raises(SchemaMismatchError) as failure:
        sink_of(kind, **given).open_table().plan_batch(pa.schema(rows), "append", 0)
    assert said in str(failure.value)
    assert list(tmp_path.iterdir()) == []


VALUES_OF_AWS = [
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
]
VALUES_OF_IDS = [
    ({"idColumn": "i"}, {"id": [1, 2], "i": ["a", None]}, "NULL in the column 'i'"),
    ({"idColumn": "i"}, {"id": [1, 2], "i": ["a", ""]}, "an empty text in the column 'i', which idColumn"),
]
RESERVED = [
    *[("{id}.x", {"id": ["a", one]}) for one in ("$JS", "$SYS", "$", "_INBOX", "_R_", "_GR_")],
    ("{id}", {"id": ["$JS"]}),
    ("_{id}{x}.y", {"id": ["IN"], "x": ["BOX"]}),
]
"""Subjects and rows."""
VALUES_OF_SEARCH = [
    ({"idColumn": "i"}, {"i": ["a", None]}, "NULL in the column 'i'"),
    ({"idColumn": "i"}, {"i": ["é" * 257]}, "The id of a row has 514 bytes"),
    ({"routing": "r"}, {"r": ["a", None]}, "NULL in the column 'r'"),
    ({"routing": "r"}, {"r": [""]}, "empty text in the column 'r'"),
]


@pytest.mark.parametrize(
    ("kind", "options", "rows", "said"),
    [
        *VALUES_OF_AWS,
        *((kind, *row) for kind in SEARCH for row in VALUES_OF_SEARCH),
        *((kind, *row) for kind in GIVEN for row in VALUES_OF_IDS),
        *(("nats", {"subject": subject}, row, "which NATS itself uses") for subject, row in RESERVED),
    ],
)
def test_values_that_do_not_fit_are_refused_by_the_task(
    kind: str, options: dict[str, str], rows: Mapping[str, list[Any]], said: str
) -> None:
    """Decoupled, before they are in the row log."""
    check = sink_of(kind, **options).requests.checker()
    with pytest.raises(SchemaMismatchError) as failure:
        pickle.loads(pickle.dumps(check))(pa.record_batch(dict(rows)))
    assert said in str(failure.value)


# Limits ----------------------------------------------------------------------------------------------

NONE = sys.maxsize
SERVICE_LIMITS = [
    ("kinesis", (500, 5 << 20, 1 << 20), (500, 5 << 20, 1 << 20)),
    ("firehose", (500, 4 << 20, 1000 << 10), (500, 4 << 20, 1000 << 10)),
    ("dynamodb", (25, 16 << 20, 400 << 10), (25, 16 << 20, 400 << 10)),
    ("sqs", (10, 1 << 20, 1 << 20), (10, 1 << 20, 1 << 20)),
    # max_payload
    ("nats", (500, 4 << 20, 1 << 20), (NONE, NONE, 1 << 20)),
    # client-query-buffer-limit, proto-max-bulk-len
    ("redis", (500, 4 << 20, 1 << 20), (NONE, 1 << 30, 512 << 20)),
    # http.max_content_length
    *((kind, (1000, 10 << 20, 10 << 20), (NONE, 100 << 20, 100 << 20)) for kind in SEARCH),
]
"""Rows and bytes of a request, and bytes of a row: the defaults, and what the service documents as its own
default.
"""


@pytest.mark.parametrize(("kind", "limits", "documented"), SERVICE_LIMITS)
def test_limits_are_those_of_the_service(
    kind: str, limits: tuple[int, int, int], documented: tuple[int, int, int]
) -> None:
    options = service_of(kind).options.parse(GIVEN[kind]).limits
    found = (options.batch_entries_max, options.batch_bytes_max, options.record_bytes_max)
    assert found == limits
    assert all(one <= most for one, most in zip(found, documented, strict=True))


# AWS -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", AWS)
@pytest.mark.parametrize(("delivery", "calls"), [("coupled", 3), ("decoupled", 1)])
def test_a_destination_is_looked_up_for_each_batch_or_once_in_a_process(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivery: str, calls: int
) -> None:
    """A decoupled query does not need it."""
    asked = []
    sink: Any = sink_of(kind, rowLog=str(tmp_path / "log"), delivery=delivery)
    monkeypatch.setattr(type(sink.requests), "check_destination", lambda *_: asked.append(1))
    for batch_id in range(3):
        sink.open_table().plan_batch(IDS, "append", batch_id)
    assert len(asked) == calls


@pytest.mark.parametrize("kind", AWS)
def test_the_delivery_process_gives_credentials_with_storage_options(kind: str) -> None:
    access = TableAccess.parse([f"{key}={value}" for key, value in KEYS.items()] + ["AWS_REGION=x"], None)
    sink: Any = load(BUILT_IN[kind]).sink(StreamKey("q", f"{kind}://us-east-1/flights"), GIVEN[kind], access)
    assert (sink.options.access_key_id, sink.options.secret_access_key) == ("geheim-1", "geheim-2")
    assert sink.options.session_token == "geheim-3"
    assert sink.options.storage_options == {"AWS_REGION": "x"}


# NATS and Redis --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "wildcard"),
    [("rows", "rows"), ("rows.{id}", "rows.*"), ("a.x{b}y.{c}{d}", "a.*.*"), ("{a}.b", "*.b")],
)
def test_the_streams_of_all_rows_are_found_by_a_wildcard(subject: str, wildcard: str) -> None:
    assert NatsOptions.parse({**GIVEN["nats"], "subject": subject}).target.subjects == wildcard


def test_a_template_has_columns_braces_and_text() -> None:
    key = RedisOptions.parse({**GIVEN["redis"], "key": "{{a}}:{b}:{c d}"}).key
    assert (key.columns, key.example) == (["b", "c d"], "{a}:0:0")


def test_with_tls_the_certificate_must_be_that_of_the_host() -> None:
    """With both clients, in each version of the library."""
    target = RedisOptions.parse({**GIVEN["redis"], "url": "rediss://redis.example.com/0"}).target
    assert target.arguments["ssl_check_hostname"] is True
    for client in (redis.Redis(**target.arguments), redis.asyncio.Redis(**target.arguments)):
        connection: Any = client.connection_pool.make_connection()
        assert isinstance(connection, redis.SSLConnection | redis.asyncio.connection.SSLConnection)


# OpenSearch and Elasticsearch --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SEARCH)
@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://h", {"scheme": "https", "host": "h", "port": 443, "path": ""}),
        ("http://h", {"scheme": "http", "host": "h", "port": 80, "path": ""}),
        ("http://[::1]:9200/p/", {"scheme": "http", "host": "::1", "port": 9200, "path": "/p"}),
    ],
)
def test_a_url_without_a_port_has_that_of_its_scheme(kind: str, url: str, host: dict[str, Any]) -> None:
    """Not 9200, as in the libraries."""
    requests: Any = sink_of(kind, url=url).requests
    assert requests.target.host == host


@pytest.mark.parametrize("kind", SEARCH)
@pytest.mark.parametrize(
    ("url", "is_sent"), [(SEARCH_URL, True), ("https://search.example.com", False), ("https://h", False)]
)
def test_the_delivery_process_sends_credentials_only_to_their_url(kind: str, url: str, is_sent: bool) -> None:
    access = TableAccess.parse([f"url={url}", *(f"{key}={value}" for key, value in USER.items())], None)
    sink: Any = load(BUILT_IN[kind]).sink(StreamKey("q", f"{kind}+{SEARCH_URL}/flights"), GIVEN[kind], access)
    assert (sink.requests.target.basic_auth == ("geheim-1", "geheim-2")) == is_sent


def test_an_api_key_takes_the_place_of_a_user() -> None:
    with pytest.raises(ConfigurationError, match="apiKey"):
        sink_of("opensearch", apiKey="geheim")
    sink: Any = sink_of("elasticsearch", apiKey="geheim")
    assert sink.requests.target.headers == {"authorization": "ApiKey geheim"}
    with pytest.raises(ConfigurationError, match="apiKey and username contradict each other"):
        ElasticsearchOptions.parse({**GIVEN["elasticsearch"], **USER, "apiKey": "geheim"})
