"""Options of `penstock.opensearch` and `penstock.elasticsearch`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from ...writers.changes.envelopes.events import POSITION
from ...writers.requests.opening import WriterSettings
from ...writers.search.changes import SearchChanges
from ...writers.search.results import Operation
from ...writers.search.target import SearchTarget
from ..changes.modes import EnvelopeChanges
from ..options.declaring import declared, option, optional
from ..options.parsing import flag, one_of, text
from ..options.urls import http_url
from ..requests.change_options import RequestChangeOptions
from ..requests.options import RequestOptions, batch_bytes, batch_entries, record_bytes

URL = "https://search.example.com:9200"
_OPERATIONS: Mapping[str, Operation] = {"index": "index", "create": "create"}


def _url(url: str) -> str:
    normalized = http_url(url, example=URL, credentials="username and password")
    if "?" in normalized:
        raise ValueError(f"must have no query: {URL}")
    return normalized.rstrip("/")


def _index(name: str) -> str:
    """See "Create index" in the documentation of both services, which refuse the same names."""
    name = text(name).strip()
    if not re.fullmatch(r"[^-_+A-Z\\/*?\"<>| ,#:\x00-\x1f][^A-Z\\/*?\"<>| ,#:\x00-\x1f]*", name) or (
        name in (".", "..") or len(name.encode()) > 255
    ):
        raise ValueError("must be the name of one index, alias or data stream, in lower case")
    return name


def _pipeline(name: str) -> str:
    if text(name).strip() == "_none":
        raise ValueError("must be the name of an ingest pipeline")
    return name.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions(RequestChangeOptions, RequestOptions):
    """Options of both. Requests have the size that both recommend, far below `http.max_content_length`."""

    REQUIRED: ClassVar[Mapping[str, str]] = {"url": URL, "index": "flights"}
    KIND: ClassVar[str]
    compares_versions: ClassVar[bool] = True

    url: str = field(
        metadata=declared(
            "url", _url, f"The service, or a load balancer: `{URL}`. Credentials are separate options."
        )
    )
    index: str = field(metadata=declared("index", _index, "Name of the index, the alias or the data stream."))
    operation: Literal["index", "create"] = option(
        "operation",
        one_of(_OPERATIONS),
        "`index` replaces a document with the same `_id`. `create` keeps the document, and needs "
        "`idColumn`. Data streams need `create`.",
        default="index",
    )
    creates_index: bool = option(
        "createIndex",
        flag,
        "Create a missing index, with the mapping of its template or one that the service derives from the "
        "first rows. Otherwise a missing index is an error.",
        default="false",
    )
    pipeline: str | None = optional("pipeline", _pipeline, "An ingest pipeline for the documents.")
    routing: str | None = optional(
        "routing",
        text,
        "Column with the routing values, which determine the shards of the documents. Rows with the same id "
        "must have the same one.",
        default="the ids",
    )
    username: str | None = optional("username", text, "User. Never shown or stored.", is_secret=True)
    password: str | None = optional(
        "password", text, "Password of the user. Never shown or stored.", is_secret=True
    )
    batch_entries_max: int = batch_entries("1000")
    batch_bytes_max: int = batch_bytes("10mb")
    record_bytes_max: int = record_bytes("10mb")

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        problems = []
        if ("username" in values) != ("password" in values):
            problems.append("username and password belong together. Give both, or none of them.")
        if values.get("is_upsert"):
            return [*problems, *_problems_of_upserts(values)]
        if values.get("operation") == "create" and "id_column" not in values:
            problems.append(
                "operation=create needs idColumn: when Spark writes a batch again, other rows can get the "
                "derived ids, and rows whose id exists are not written."
            )
        return problems

    @property
    def address(self) -> str:
        """Such as `opensearch+https://search.example.com:9200/flights`."""
        return f"{self.KIND}+{self.url}/{self.index}"

    @property
    def basic_auth(self) -> tuple[str, str] | None:
        return None if self.username is None else (self.username, self.password or "")

    @property
    def ordered_settings(self) -> WriterSettings:
        """Rows with the same id are sent one after the other, so that the last one stays."""
        settings = self.writer_settings
        return replace(settings, order_by_key=self.id_column is not None or self.is_upsert)

    @property
    def search_changes(self) -> SearchChanges | None:
        changes = self.changes
        if isinstance(changes, EnvelopeChanges) and not changes.order_by:
            changes = replace(changes, order_by=(POSITION,))  # in the log of the source
        return None if changes is None else SearchChanges.of(changes, self.routing)

    @property
    def target(self) -> SearchTarget:
        return SearchTarget(
            self.url,
            self.index,
            self.operation,
            self.pipeline,
            self.creates_index,
            self.is_upsert and self.late_rows == "ignore",
            self.basic_auth,
        )


def _problems_of_upserts(values: Mapping[str, Any]) -> list[str]:
    problems = []
    if values.get("operation") == "create":
        problems.append(
            "writeMode=upsert: operation=create only appends. To keep all changes, append the changes as "
            "they are: leave writeMode out. To replace and delete documents by key, remove operation."
        )
    routing = values.get("routing")
    if routing is not None and routing.lower() not in {key.lower() for key in values.get("keys", ())}:
        problems.append(
            f"routing={routing} must be one of keys: a deletion knows only their columns, and looks for its "
            "document in the shard of the routing."
        )
    if values.get("late_rows") == "ignore":
        if len(values.get("order_by", ())) > 1:
            problems.append(
                "lateRows=ignore needs one column in orderBy, which is the version of a document. Make one "
                "column of them in the query."
            )
        if "tombstones_s" in values:
            problems.append(
                "tombstonesFor: the service remembers deletions as long as the setting index.gc_deletes of "
                "the index says. Remove the option, and set it there."
            )
    return problems
