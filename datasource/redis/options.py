"""Options of `penstock.redis`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ...writers.redis.target import RedisTarget, Structure
from ...writers.requests.template import Template
from ..options.declaring import declared, option, optional
from ..options.parsing import count, flag, one_of, text
from ..options.urls import refuse_credentials
from ..requests.change_options import RequestChangeOptions, problems_of_key
from ..requests.options import RequestOptions, batch_entries

_STRUCTURES: Mapping[str, Structure] = {
    "set": "set",
    "hash": "hash",
    "stream": "stream",
    "list": "list",
    "row": "row",
}
_NO_URL = "must be a URL such as redis://redis.example.com:6379/0, or rediss:// with TLS"


def address_of(url: str) -> str:
    """Normalize a URL: `redis://host:port/database`.

    Raises:
        ValueError: it is not a URL of Redis, or has credentials. The message does not contain it.
    """
    try:
        parts = urlsplit(text(url).strip())
        host, port = (parts.hostname or "").lower(), parts.port or 6379
    except ValueError:
        raise ValueError(_NO_URL) from None
    refuse_credentials(url.strip(), "username and password")
    database = re.fullmatch(r"/?([0-9]{0,5})", parts.path)
    if (
        parts.scheme.lower() not in ("redis", "rediss")
        or not host
        or database is None
        or parts.query
        or parts.fragment
        or re.search(r"[\x00-\x20\x7f]", url.strip())
    ):
        raise ValueError(_NO_URL)
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme.lower()}://{host}:{port}/{int(database[1] or 0)}"


def _template(option: str) -> Callable[[str], Template]:
    return lambda given: Template.parse(option, text(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions(RequestChangeOptions, RequestOptions):
    """Options of `penstock.redis`."""

    NAME: ClassVar[str] = "penstock.redis"
    REQUIRED: ClassVar[Mapping[str, str]] = {
        "url": "redis://redis.example.com:6379/0",
        "structure": "set",
        "key": "orders:{id}",
    }

    url: str = field(
        metadata=declared(
            "url",
            address_of,
            "The server and its database: `redis://redis.example.com:6379/0`, or `rediss://` with TLS. "
            "Credentials are separate options.",
        )
    )
    structure: Structure = field(
        metadata=declared(
            "structure",
            one_of(_STRUCTURES),
            "`set`: a string for each key (SET). `hash`: a field of a hash (HSET). `stream`: an entry of a "
            "stream (XADD). `list`: an element at the end of a list (RPUSH). `row`: a hash for each row, "
            "with a field for each column (HSET, HDEL for NULL).",
        )
    )
    key: Template = field(
        metadata=declared(
            "key",
            _template("key"),
            "Key of a row, with columns in braces: `orders:{id}`. `{{` and `}}` are braces.",
        )
    )
    hash_field: Template | None = optional(  # noqa: RUF009  it returns a field
        "field", _template("field"), "Field of a row with `structure=hash`, like `key`: `{id}`."
    )
    length_max: int | None = optional(
        "maxLength",
        count(1, 10**15),
        "Approximate number of entries that a stream keeps (XADD MAXLEN ~).",
        default="all",
    )
    is_fenced: bool = option(
        "exactlyOnce",
        flag,
        "Write each row exactly once to streams and lists. Needs `delivery=decoupled`; one request is sent "
        "at a time.",
        default="false",
    )
    username: str | None = optional(
        "username", text, "User, if it is not `default`. Never stored.", is_secret=True
    )
    password: str | None = optional(
        "password", text, "Password of the user. Never shown or stored.", is_secret=True
    )
    batch_entries_max: int = batch_entries("500")

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        problems = [*_problems_of_structure(values), *_problems_of_upserts(values)]
        if values.get("is_fenced"):
            if not values.get("is_decoupled"):
                problems.append(
                    "exactlyOnce needs delivery=decoupled: tasks of a coupled query send in no order."
                )
            if values.get("in_flight_requests_max", 1) != 1:
                problems.append("exactlyOnce sends one request at a time. Remove maxInFlightRequests.")
        if "username" in values and "password" not in values:
            problems.append("username needs password.")
        return problems

    @property
    def address(self) -> str:
        """With the key: the same server can receive several streams."""
        return f"{self.url}/{self.structure}/{self.key.text}"

    @property
    def target(self) -> RedisTarget:
        parts = urlsplit(self.url)
        return RedisTarget(
            parts.hostname or "",
            parts.port or 6379,
            int(parts.path[1:]),
            parts.scheme == "rediss",
            self.structure,
            self.key,
            self.hash_field,
            self.length_max,
            self.is_fenced,
            self.username,
            self.password,
        )


def _problems_of_upserts(values: Mapping[str, Any]) -> list[str]:
    structure, key, of_hash = values.get("structure"), values.get("key"), values.get("hash_field")
    if not values.get("is_upsert") or structure is None or key is None:
        return []
    if structure in ("stream", "list"):
        return [
            f"writeMode=upsert: structure={structure} only appends. To keep all changes, append the changes "
            "as they are: leave writeMode out. To replace and delete rows by key, use structure=set, hash or "
            "row."
        ]
    where = "key" if of_hash is None else "key and field"
    return problems_of_key(values, where, [*key.columns, *(of_hash.columns if of_hash else [])])


def _problems_of_structure(values: Mapping[str, Any]) -> list[str]:
    structure, key, of_hash = values.get("structure"), values.get("key"), values.get("hash_field")
    if structure is None or key is None:
        return []
    problems = []
    if structure == "hash" and of_hash is None:
        problems.append('field is missing, which hashes need: .option("field", "{id}").')
    if structure != "hash" and of_hash is not None:
        problems.append("field is an option of structure=hash. Remove it.")
    if structure != "stream" and "length_max" in values:
        problems.append("maxLength is an option of structure=stream. Remove it.")
    if structure in ("set", "hash", "row"):
        if not key.columns and not (of_hash and of_hash.columns):
            problems.append(
                f"key={key.text} is the same for all rows, and the last one would remain. Put columns in "
                "braces that identify a row: orders:{id}."
            )
        if values.get("is_fenced"):
            problems.append(
                f"exactlyOnce is an option of streams and lists: with structure={structure}, a row that is "
                "sent again replaces itself. Remove it."
            )
    return problems
