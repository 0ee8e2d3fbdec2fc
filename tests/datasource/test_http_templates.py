"""URLs and bodies with columns, sent to a real service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pyarrow as pa
import pytest
from servers.http_rows import HttpRows
from tests.conformance.harnesses import HttpHarness
from tests.support.service_places import send_rows, with_quick_retries

from penstock import ConfigurationError, SchemaMismatchError
from penstock.committers.requests.contract import RowPlace
from penstock.committers.store.sql import open_store
from penstock.datasource.http.options import HttpOptions
from penstock.datasource.http.sink import SERVICE
from penstock.testing.conformance import Query

URL = "https://api.example.com"
EVENT = '{{"type": "order", "id": {id}, "data": {{"name": {name}, "again": [{name}]}}}}'
AWKWARD = ["a b", "é/../x?y=1&z#f", "100%", "..%2F", "+", "{id}", "\\", ". .", "1;v=2", "(a,b)*!'@:$"]


def send(server: HttpRows, rows: pa.RecordBatch, path: str = "", **options: str) -> None:
    sink = SERVICE.sink({"checkpointLocation": "/c", "url": f"{server.url}{path}", **options})
    send_rows(with_quick_retries(sink.requests), rows)


def named(*names: str | None) -> pa.RecordBatch:
    return pa.record_batch({"id": range(len(names)), "name": pa.array(names, pa.string())})


def test_each_row_has_a_path_of_its_own(http_service: HttpRows) -> None:
    """Whatever the values contain: they stay in their part of the path and of the query."""
    send(http_service, named(*AWKWARD), "/{name}/x?name={name}&n={id}", format="row", method="PUT")

    requests = sorted(http_service.received(), key=lambda one: one.ids)
    assert {one.method for one in requests} == {"PUT"}
    for number, (name, request) in enumerate(zip(AWKWARD, requests, strict=True)):
        encoded = quote(name, safe="")
        assert request.path == f"/rows/{encoded}/x?name={encoded}&n={number}"
        parts = urlsplit(request.path)
        assert list(map(unquote, parts.path.split("/"))) == ["", "rows", name, "x"]
        assert parse_qs(parts.query) == {"name": [name], "n": [str(number)]}
    assert [row["name"] for row in sorted(http_service.rows(), key=lambda row: row["id"])] == AWKWARD


def test_the_text_of_a_url_is_encoded_once(http_service: HttpRows) -> None:
    send(http_service, named("é"), "/ü/%C3%BC/a|b/{name}?x=ü&n={name}", format="row")
    (request,) = http_service.received()
    assert request.path == "/rows/%C3%BC/%C3%BC/a%7Cb/%C3%A9?x=%C3%BC&n=%C3%A9"


def test_ids_that_differ_in_spaces_are_different_keys(http_service: HttpRows) -> None:
    """Servers strip spaces around the value of a header."""
    send(http_service, named("x", "x ", " x"), format="row", idColumn="name")
    assert len({one.key.strip() for one in http_service.received()}) == 3


def test_a_body_has_the_values_as_json(http_service: HttpRows) -> None:
    names = ['a "quoted" \\ text,\nof two lines', None, "{id} é"]
    send(http_service, named(*names), format="template", bodyTemplate=EVENT, contentType="application/x+json")
    assert sorted(http_service.rows(), key=lambda row: int(row["id"])) == [
        {"type": "order", "id": number, "data": {"name": name, "again": [name]}}
        for number, name in enumerate(names)
    ]
    assert {one.headers["Content-Type"] for one in http_service.received()} == {"application/x+json"}


def test_values_of_all_types_are_inserted_as_in_rows(http_service: HttpRows) -> None:
    rows = pa.record_batch(
        {
            "id": [1],
            "x": [float("nan")],
            "d": [Decimal("-0.10")],
            "s": [{"a": [1, None], "b": True}],
            "is_it": [False],
        }
    )
    send(http_service, rows, format="row")
    body = "{{" + ", ".join(f'"{name}": {{{name}}}' for name in rows.schema.names) + "}}"
    send(http_service, rows, format="template", bodyTemplate=body)
    as_row, as_template = http_service.rows()
    assert as_template == as_row


def test_values_in_a_url_have_their_text_of_json(http_service: HttpRows) -> None:
    columns = {"id": [1], "is_it": [True], "d": [Decimal("-0.10")], "day": [date(2026, 1, 2)]}
    send(http_service, pa.record_batch(columns), "/{id}/{is_it}/{d}/{day}", format="row")
    assert [one.path for one in http_service.received()] == ["/rows/1/true/-0.10/2026-01-02"]


def test_url_and_body_can_both_have_columns(http_service: HttpRows) -> None:
    body = '{{"id": 7, "ping": true}}'
    send(http_service, named("a", "b"), "/{name}", format="template", bodyTemplate=body)
    assert sorted(one.path for one in http_service.received()) == ["/rows/a", "/rows/b"]
    assert http_service.rows() == [{"id": 7, "ping": True}] * 2


def test_a_row_that_is_sent_again_has_the_same_path_and_key(http_service: HttpRows) -> None:
    http_service.set(answers=("cut after", 503))
    send(http_service, named("a"), "/{name}", format="row", method="PUT")
    first, again = http_service.received()
    assert (first.path, first.key) == (again.path, again.key)


def test_rows_of_other_urls_have_other_keys() -> None:
    """Spark may run a batch again with other rows."""
    requests = SERVICE.sink({"url": f"{URL}/{{name}}", "format": "template", "bodyTemplate": "{id}"}).requests
    place = RowPlace("q", 0, 0, 0, 0)
    rows = [pa.record_batch({"id": [1], "name": [name]}) for name in ("a", "b")]
    first, other = (requests.entries(one, place)[0].id for one in rows)
    assert first != other


# Bad rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "", ".", ".."])
@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
def test_a_value_that_would_lead_elsewhere_is_a_bad_row(
    http_service: HttpRows, tmp_path: Path, value: str | None, delivery: str
) -> None:
    query = Query(
        HttpHarness(tmp_path, http_service),
        options={"url": f"{http_service.url}/{{name}}", "format": "row", "delivery": delivery},
    )
    rows = pa.Table.from_batches([named("a", value, "b")])
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        with pytest.raises(SchemaMismatchError, match=r"which url names|columns that url names"):
            query.run(store, query.batch(0), rows)
        assert all(one.path.startswith("/rows/") for one in http_service.received())
        if delivery == "decoupled":
            return
        http_service.clear()
        query.with_options(badRows="drop").run(store, query.batch(0), rows)
    assert sorted(one.path for one in http_service.received()) == ["/rows/a", "/rows/b"]


# Options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": URL + "/{id}"}, "url has columns in braces.*format=json"),
        ({"url": URL + "/?x={id}", "format": "ndjson"}, "url has columns in braces.*format=ndjson"),
        ({"url": "https://{host}/rows", "format": "row"}, "must begin with scheme, host and port"),
        ({"url": "https://api.{zone}.example.com/", "format": "row"}, "must begin with scheme, host and"),
        ({"url": "https://api.example.com{id}/", "format": "row"}, "must begin with scheme, host and port"),
        ({"url": "https://api.example.com:{port}/", "format": "row"}, "must be a URL such as"),
        ({"url": "https://{a/b}/c", "format": "row"}, "must begin with scheme, host and port"),
        ({"url": "{url}", "format": "row"}, "must be a URL such as"),
        ({"url": URL + "/{{id}}", "format": "row"}, "must have %7B and %7D"),
        ({"url": URL + "/{id", "format": "row"}, "must be a text with columns in braces"),
        ({"url": URL + "/{id:3}", "format": "row"}, "names of columns in braces"),
        ({"url": URL + "/rows/../{id}", "format": "row"}, r"must not have \. or \.\. as a part"),
        ({"format": "template"}, "bodyTemplate is missing"),
        ({"bodyTemplate": "{id}"}, "bodyTemplate is an option of format=template"),
        ({"format": "template", "bodyTemplate": '{{"a": 1}}'}, "have no column in braces"),
        ({"format": "template", "bodyTemplate": '{{"a": "{id}"}}'}, "must be JSON with columns"),
        ({"format": "template", "bodyTemplate": '{{"a": "x-{id}-y"}}'}, "must be JSON with columns"),
        ({"format": "template", "bodyTemplate": '{{"{id}": 1}}'}, "must be JSON with columns"),
        ({"format": "template", "bodyTemplate": '{"a": {id}}'}, "must be JSON with columns"),
        ({"format": "template", "bodyTemplate": "{{{id}: 1}}"}, "must be JSON with columns"),
        ({"format": "template", "bodyTemplate": "-{id}"}, "must be JSON with columns"),
        ({"format": "template", "bodyTemplate": "[{id}5]"}, "must be JSON with columns"),
        ({"format": "template", "bodyTemplate": "<id>{id}</id>"}, "must be JSON with columns"),
        ({"contentType": "json"}, "must be a media type"),
        ({"contentType": "a/b\r\nX-Y: z"}, "must be a media type"),
        ({"contentType": "a/b", "header.content-type": "a/c"}, "contradict each other"),
    ],
)
def test_contradictions_are_named_before_any_row_moves(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        HttpOptions.parse({"url": URL, **options})
    assert str(raised.value).count("\n  - ") == 1, "nothing else is wrong"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"url": URL + "/{other}", "format": "row"},
            "url names the column 'other', which the query does not",
        ),
        (
            {"url": URL + "/{x}", "format": "row"},
            "url names the column 'x' of type double: cast it to STRING",
        ),
        ({"format": "template", "bodyTemplate": "{other}"}, "bodyTemplate names the column 'other'"),
    ],
)
@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
def test_columns_are_checked_before_any_row_moves(
    tmp_path: Path, options: dict[str, str], said: str, delivery: str
) -> None:
    rows = pa.schema({"id": pa.int64(), "x": pa.float64()})
    given = {"url": URL, "rowLog": str(tmp_path / "log"), "delivery": delivery, **options}
    with pytest.raises(SchemaMismatchError, match=said):
        SERVICE.sink(given).open_table().plan_batch(rows, "append", 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("HTTPS://API.example.com:443/Orders/{ID}?x={Y}", "https://api.example.com/Orders/{ID}?x={Y}"),
        ("https://api.example.com?x={Y}", "https://api.example.com/?x={Y}"),
    ],
)
def test_the_address_is_the_template(given: str, address: str) -> None:
    options = HttpOptions.parse({"url": given, "format": "row"})
    assert options.address == address
    assert options.url_template is not None
    assert options.url_template.text == address


def filled(template: str, values: Sequence[str]) -> Any:
    options = HttpOptions.parse({"url": URL, "format": "template", "bodyTemplate": template})
    assert options.body_template is not None
    return [json.loads(options.body_template.filled(value)) for value in values]


@pytest.mark.parametrize("template", ["{id}", "[{id}, {id}]", '{{"{{": "{{x}}", "a": {id} }}'])
def test_a_template_that_is_accepted_is_json_with_any_value(template: str) -> None:
    filled(template, ['"x"', "-1.5e3", "null", "true", '{"a": ["b"]}'])
