"""Options of `penstock.nats`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ...writers.nats.message import is_reserved
from ...writers.nats.target import NatsTarget
from ...writers.requests.template import Template
from ..options.declaring import declared, option, optional
from ..options.parsing import flag, properties, text
from ..options.urls import refuse_credentials
from ..requests.options import RequestOptions, batch_entries

_NO_URL = "must be a URL such as nats://nats.example.com:4222, or tls:// with TLS; several with commas"
_NO_SUBJECT = (
    "must be a subject such as orders.{id}: tokens with dots between them, without spaces and the wildcards "
    "* and >, and the first one does not begin with $ and is not _INBOX"
)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""Name of a header."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def address_of(urls: str) -> str:
    """Normalize the URLs of the servers: `nats://host:port`.

    Raises:
        ValueError: one is not a URL of NATS, or has credentials. The message does not contain it.
    """
    addresses = [_one_address(url.strip()) for url in text(urls).split(",")]
    if len({address.partition(":")[0] for address in addresses}) > 1:
        raise ValueError("must have nats:// in all URLs, or tls:// in all")
    return ",".join(sorted(set(addresses)))


def _one_address(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or 4222
    except ValueError:
        raise ValueError(_NO_URL) from None
    refuse_credentials(url, "username and password, token, nkeySeed or credentials")
    scheme = parts.scheme.lower()
    is_more = parts.path.strip("/") or parts.query or parts.fragment
    if scheme not in ("nats", "tls") or not host or is_more or re.search(r"[\x00-\x20\x7f]", url):
        raise ValueError(_NO_URL)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _subject(given: str) -> Template:
    template = Template.parse("subject", text(given))
    tokens = template.example.split(".")
    if "" in tokens or is_reserved(template.example) or re.search(r"[\s*>\x00-\x1f\x7f]", template.example):
        raise ValueError(_NO_SUBJECT)
    return template


def _headers(given: str) -> tuple[tuple[str, Template], ...]:
    headers = []
    for name, value in properties(given).items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"has {name!r}, which is not the name of a header")
        if name.lower().startswith("nats-"):
            raise ValueError(
                f"has {name!r}: headers of NATS itself are set by idColumn and expectedStream, or not at all"
            )
        if _CONTROL.search(value) or value != value.strip():
            raise ValueError(f"has spaces around the value of {name!r}, or control characters in it")
        headers.append((name, Template.parse("headers", value)))
    return tuple(headers)


def _stream(given: str) -> str:
    if re.search(r"[\s.*>/\\\x00-\x1f\x7f]", text(given)):
        raise ValueError("must be the name of a stream, without spaces, dots, slashes and wildcards")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions(RequestOptions):
    """Options of `penstock.nats`."""

    NAME: ClassVar[str] = "penstock.nats"
    REQUIRED: ClassVar[Mapping[str, str]] = {"url": "nats://nats.example.com:4222", "subject": "orders.{id}"}

    url: str = field(
        metadata=declared(
            "url",
            address_of,
            "The server, or servers of one cluster with commas: `nats://nats.example.com:4222`, or `tls://` "
            "with TLS. Credentials are separate options.",
        )
    )
    subject: Template = field(
        metadata=declared(
            "subject",
            _subject,
            "Subject of a row, with columns in braces: `orders.{country}`. A value is one token. `{{` and "
            "`}}` are braces.",
        )
    )
    expected_stream: str | None = optional(
        "expectedStream",
        _stream,
        "The stream that must take the messages (`Nats-Expected-Stream`).",
        default="any that has the subject",
    )
    headers: tuple[tuple[str, Template], ...] = option(
        "headers",
        _headers,
        'Headers of a message, as a JSON object with columns in braces: `{"country": "{country}"}`.',
        default="{}",
    )
    is_exactly_once: bool = option(
        "exactlyOnce",
        flag,
        "Refuse a stream whose duplicate window is shorter than `retryFor` and `requestTimeout` together. "
        "Otherwise a warning says so.",
        default="false",
    )
    username: str | None = optional("username", text, "User. Never stored.", is_secret=True)
    password: str | None = optional(
        "password", text, "Password of the user. Never shown or stored.", is_secret=True
    )
    token: str | None = optional(
        "token", text, "Token, for servers without users. Never shown or stored.", is_secret=True
    )
    nkey_seed: str | None = optional(
        "nkeySeed",
        text,
        "Seed of an NKey: `SU...`. Needs `pip install nkeys`. Never shown or stored.",
        is_secret=True,
    )
    credentials: str | None = optional(
        "credentials",
        text,
        "Content of a file `.creds`, with JWT and seed. Needs `pip install nkeys`. Never shown or stored.",
        is_secret=True,
    )
    ca_file: str | None = optional(
        "caFile",
        text,
        "File with certificates of the authorities that are trusted with `tls://`, on driver, executors and "
        "where the delivery process runs.",
        default="those of the system",
    )
    batch_entries_max: int = batch_entries("500")

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        problems = []
        url = values.get("url", "")
        ways = [
            name
            for name, its in (
                ("username", "username"),
                ("token", "token"),
                ("nkeySeed", "nkey_seed"),
                ("credentials", "credentials"),
            )
            if its in values
        ]
        if len(ways) > 1:
            problems.append(f"{' and '.join(ways)} are different ways to log in. Give one of them.")
        if ("username" in values) != ("password" in values):
            problems.append("username and password need each other.")
        if values.get("is_exactly_once") and not (values.get("is_decoupled") or "id_column" in values):
            problems.append(
                "exactlyOnce needs delivery=decoupled or idColumn: without them, ids are derived from "
                "Spark's partitions, and a batch that runs again may have others."
            )
        if "ca_file" in values and not url.startswith("tls:"):
            problems.append("caFile needs TLS: a url that begins with tls://.")
        return problems

    @property
    def address(self) -> str:
        """With the subject: the same servers can receive several streams."""
        return f"{self.url}/{self.subject.text}"

    @property
    def target(self) -> NatsTarget:
        return NatsTarget(
            servers=tuple(self.url.split(",")),
            subject=self.subject,
            headers=self.headers,
            expected_stream=self.expected_stream,
            is_exactly_once=self.is_exactly_once,
            ca_file=self.ca_file,
            username=self.username,
            password=self.password,
            token=self.token,
            nkey_seed=self.nkey_seed,
            credentials=self.credentials,
        )
