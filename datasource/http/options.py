"""Options of `penstock.http`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ...writers.requests.template import Template
from ..options.declaring import declared, option, optional, passed_on
from ..options.parsing import one_of, text
from ..options.urls import http_url
from ..requests.change_options import RequestChangeOptions, problems_of_key
from ..requests.options import RequestOptions

if TYPE_CHECKING:
    from ...writers.requests.http import Body, HttpTarget

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""RFC 9110, section 5.6.2."""
_METHODS = ("POST", "PUT", "PATCH")
Format: TypeAlias = Literal["json", "ndjson", "row", "template"]
_FORMATS: Mapping[str, Format] = {"json": "json", "ndjson": "ndjson", "row": "row", "template": "template"}
_ONE_ROW = frozenset(("row", "template"))
"""Formats whose requests have one row."""
_BODIES: Mapping[Format, Body] = {
    "json": "json_array",
    "ndjson": "ndjson",
    "row": "row",
    "template": "row",
}


def address_of(url: str) -> str:
    """Normalize a URL: one address for each endpoint.

    Raises:
        ValueError: it is not a URL of HTTP. The message does not contain it.
    """
    credentials = "username and password, bearerToken, or header.*"
    return http_url(url, example="https://api.example.com/rows", credentials=credentials)


def _url(given: str) -> str:
    """Normalize a URL, which can have columns in braces. No row can choose the host."""
    url = address_of(given)
    if "{{" in url or "}}" in url:
        raise ValueError("must have %7B and %7D for braces that are not those of a column")
    template = Template.parse("url", url)
    if template.columns and template.parts[0][0].count("/") < 3:
        raise ValueError(
            "must begin with scheme, host and port without columns, such as https://api.example.com/rows/{id}"
        )
    return url


def _body_template(given: str) -> Template:
    try:
        template = Template.parse("bodyTemplate", text(given))
        for value in ('""', "0"):  # both are valid only where any value is
            json.loads(template.filled(value))
    except ValueError:
        raise ValueError(
            "must be JSON with columns in braces in the place of values, and {{ and }} for braces: "
            '{{"id": {id}}}'
        ) from None
    return template


def _media_type(given: str) -> str:
    if not re.fullmatch(rf"{_TOKEN.pattern}/{_TOKEN.pattern}( *;[ -~]*)?", given):
        raise ValueError("must be a media type, such as application/cloudevents+json")
    return given


def _token(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ValueError("must be the name of a header")
    return name


def _method(name: str) -> str:
    if name.strip().upper() not in _METHODS:
        raise ValueError(f"must be one of {', '.join(_METHODS)}, the methods whose body a service stores")
    return name.strip().upper()


def _delete_method(name: str) -> str:
    if name.strip().upper() not in ("DELETE", *_METHODS):
        raise ValueError(f"must be one of {', '.join(('DELETE', *_METHODS))}")
    return name.strip().upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions(RequestChangeOptions, RequestOptions):
    """Options of `penstock.http`."""

    NAME: ClassVar[str] = "penstock.http"
    REQUIRED: ClassVar[Mapping[str, str]] = {"url": "https://api.example.com/rows"}

    url: str = field(
        metadata=declared(
            "url",
            _url,
            "Where to send the rows: `https://api.example.com/rows`. Credentials are separate options. If "
            "each row is a request of its own, path and query can have columns in braces: "
            "`https://api.example.com/orders/{id}`.",
        )
    )
    method: str = option(
        "method", _method, "Method of the requests: `POST`, `PUT` or `PATCH`.", default="POST"
    )
    delete_method: str | None = optional(
        "deleteMethod",
        _delete_method,
        "With `writeMode=upsert`: method of the rows that delete. `DELETE` has no body; the body of `POST`, "
        "`PUT` and `PATCH` has the columns of `keys`.",
        default="`DELETE`",
    )
    format: Format = option(  # noqa: RUF009  it returns a field
        "format",
        one_of(_FORMATS),
        "Body of a request: `json`, an array of objects; `ndjson`, one object a line; `row`, one object, so "
        "that each row is a request of its own; `template`, the same with `bodyTemplate`.",
        default="json",
    )
    body_template: Template | None = optional(  # noqa: RUF009  it returns a field
        "bodyTemplate",
        _body_template,
        "Body of a request with `format=template`: JSON with columns in braces in the place of values: "
        '`{{"id": {id}, "type": "order"}}`. `{{` and `}}` are braces.',
    )
    content_type: str | None = optional(
        "contentType",
        _media_type,
        "Header `Content-Type`.",
        default="`application/json`, or `application/x-ndjson`",
    )
    bearer_token: str | None = optional(
        "bearerToken",
        text,
        "Token for the header `Authorization: Bearer`. Never shown or stored.",
        is_secret=True,
    )
    username: str | None = optional(
        "username", text, "User for the header `Authorization: Basic`. Never stored.", is_secret=True
    )
    password: str | None = optional(
        "password", text, "Password of the user. Never shown or stored.", is_secret=True
    )
    idempotency_header: str = option(
        "idempotencyHeader",
        _token,
        "Header with the id of the request: the id of its row or, of several rows, a hash of their ids.",
        default="Idempotency-Key",
    )
    headers: Mapping[str, str] = passed_on(
        "header.", str.lower, "Headers of all requests, such as `header.X-Api-Key`."
    )

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        return [
            *_problems_of_templates(values),
            *_problems_of_headers(values),
            *_problems_of_upserts(values),
        ]

    @property
    def address(self) -> str:
        return self.url

    @property
    def url_template(self) -> Template | None:
        """None: all rows have the same URL."""
        template = Template.parse("url", self.url)
        return template if template.columns else None

    @property
    def target(self) -> HttpTarget:
        from ...writers.requests.http import HttpTarget

        return HttpTarget(
            self.url,
            self.method,
            _BODIES[self.format],
            self.headers
            if self.content_type is None
            else {"Content-Type": self.content_type, **self.headers},
            self.bearer_token,
            None if self.username is None else (self.username, self.password or ""),
            idempotency_header=self.idempotency_header,
        )


def _problems_of_upserts(values: Mapping[str, Any]) -> list[str]:
    if not values.get("is_upsert"):
        is_given = "delete_method" in values
        return ["deleteMethod: only a query with writeMode=upsert has it."] if is_given else []
    problems = []
    if values.get("format", "json") not in _ONE_ROW:
        problems.append(
            "writeMode=upsert needs requests of one row, whose method says what it does. Set "
            '.option("format", "row") or "template"; or append the changes as they are: leave writeMode out.'
        )
    if values.get("delete_method") == values.get("method", "POST"):
        problems.append(
            f"deleteMethod={values['delete_method']} is also the method of other rows, and the service could "
            "not tell them apart. Give another one."
        )
    url = values.get("url")
    columns = Template.parse("url", url).columns if url is not None else []
    return [*problems, *problems_of_key(values, "url", columns)]


def _problems_of_templates(values: Mapping[str, Any]) -> list[str]:
    url, body, of_request = values.get("url"), values.get("body_template"), values.get("format", "json")
    url_columns = Template.parse("url", url).columns if url is not None else []
    problems = []
    if url_columns and of_request not in _ONE_ROW:
        problems.append(
            f"url has columns in braces, so that each row is a request of its own, but format={of_request} "
            'puts several into one. Set .option("format", "row").'
        )
    if of_request == "template" and body is None:
        problems.append(
            'bodyTemplate is missing, which format=template needs: .option("bodyTemplate", '
            "'{{\"id\": {id}}}')."
        )
    if of_request != "template" and body is not None:
        problems.append("bodyTemplate is an option of format=template. Set it, or remove bodyTemplate.")
    if body is not None and url is not None and not body.columns and not url_columns:
        problems.append("bodyTemplate and url have no column in braces: all requests would be the same.")
    return problems


def _problems_of_headers(values: Mapping[str, Any]) -> list[str]:
    headers: Mapping[str, str] = values.get("headers", {})
    problems = [
        f"header.{name}: must be a name and a value without control characters."
        for name, value in headers.items()
        if not _TOKEN.fullmatch(name) or not value.isprintable() or not value.isascii()
    ]
    if values.get("idempotency_header", "Idempotency-Key").lower() in headers:
        problems.append("idempotencyHeader and header.* name the same header. Remove one of them.")
    if "content-type" in headers and "content_type" in values:
        problems.append("contentType and header.Content-Type contradict each other. Give one of them.")
    if "password" in values and "username" not in values:
        problems.append("password needs username.")
    ways = ("bearerToken", "bearer_token"), ("username", "username")
    given = [name for name, its in ways if its in values]
    if "authorization" in headers:
        given.append("header.Authorization")
    if len(given) > 1:
        problems.append(f"{' and '.join(given)} contradict each other. Give one of them.")
    return problems
