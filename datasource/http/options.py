"""Options of `penstock.http`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..options.declaring import declared, option, optional, passed_on
from ..options.parsing import one_of, text
from ..options.urls import http_url
from ..requests.options import RequestOptions

if TYPE_CHECKING:
    from ...writers.requests.http import HttpTarget

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""RFC 9110, section 5.6.2."""
_FORMATS: Mapping[str, Literal["json", "ndjson", "row"]] = {"json": "json", "ndjson": "ndjson", "row": "row"}


def address_of(url: str) -> str:
    """Normalize a URL: one address for each endpoint.

    Raises:
        ValueError: it is not a URL of HTTP. The message does not contain it.
    """
    return http_url(url, example="https://api.example.com/rows", credentials="username and password")


def _token(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ValueError("must be the name of a header")
    return name


def _method(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z]{1,20}", name):
        raise ValueError("must be a method of HTTP, such as POST or PUT")
    return name.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions(RequestOptions):
    """Options of `penstock.http`."""

    NAME: ClassVar[str] = "penstock.http"
    REQUIRED: ClassVar[Mapping[str, str]] = {"url": "https://api.example.com/rows"}

    url: str = field(
        metadata=declared(
            "url",
            address_of,
            "Where to send the rows: `https://api.example.com/rows`. Credentials are separate options.",
        )
    )
    method: str = option("method", _method, "Method of the requests.", default="POST")
    format: Literal["json", "ndjson", "row"] = option(
        "format",
        one_of(_FORMATS),
        "Body of a request: `json`, an array of objects; `ndjson`, one object a line; `row`, one object, so "
        "that each row is a request of its own.",
        default="json",
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
        return _problems_of_headers(values)

    @property
    def address(self) -> str:
        return self.url

    @property
    def target(self) -> HttpTarget:
        from ...writers.requests.http import HttpTarget

        return HttpTarget(
            self.url,
            self.method,
            "json_array" if self.format == "json" else self.format,
            self.headers,
            self.bearer_token,
            None if self.username is None else (self.username, self.password or ""),
            idempotency_header=self.idempotency_header,
        )


def _problems_of_headers(values: Mapping[str, Any]) -> list[str]:
    headers: Mapping[str, str] = values.get("headers", {})
    problems = [
        f"header.{name}: must be a name and a value without control characters."
        for name, value in headers.items()
        if not _TOKEN.fullmatch(name) or not value.isprintable() or not value.isascii()
    ]
    if values.get("idempotency_header", "Idempotency-Key").lower() in headers:
        problems.append("idempotencyHeader and header.* name the same header. Remove one of them.")
    if "password" in values and "username" not in values:
        problems.append("password needs username.")
    ways = ("bearerToken", "bearer_token"), ("username", "username")
    given = [name for name, its in ways if its in values]
    if "authorization" in headers:
        given.append("header.Authorization")
    if len(given) > 1:
        problems.append(f"{' and '.join(given)} contradict each other. Give one of them.")
    return problems
