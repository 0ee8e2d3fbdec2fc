"""URLs and bodies of requests with the values of a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from urllib.parse import quote

import pyarrow as pa

from ...committers.errors import SchemaMismatchError
from ..requests.json_rows import check_values, json_texts
from ..requests.row_ids import texts_of
from ..requests.template import Template

_COLUMN = "penstock-column"


def as_sent(url: Template) -> Template:
    """Return the template of URLs with its own texts as they are sent: percent-encoded, the host in ASCII."""
    from yarl import URL

    texts = str(URL(url.filled(_COLUMN))).split(_COLUMN)
    return Template(url.option, url.text, tuple(zip_longest(texts, url.columns)))


def urls_of(template: Template, rows: pa.RecordBatch) -> Sequence[str]:
    """Return the URL of each row. Values are percent-encoded and stay in their part of the path or query.

    Raises:
        SchemaMismatchError: a value is NULL or empty, or makes a part of the path `.` or `..`.
    """
    urls = template.texts(rows, _encoded)
    for url in urls:
        if not {".", ".."}.isdisjoint(url.partition("?")[0].split("/")):
            raise SchemaMismatchError(
                "A row has a value in the columns that url names which makes a part of the path . or .., and "
                "its request would go to another path. Filter these rows, or replace the value."
            )
    return urls


def bodies_of(template: Template, rows: pa.RecordBatch) -> list[bytes]:
    """Return the body of each row. Its values are JSON.

    Raises:
        SchemaMismatchError: a value cannot be converted.
    """
    check_values(rows)
    return [text.encode() for text in template.texts(rows, _as_json)]


def _encoded(rows: pa.RecordBatch, option: str, column: str) -> Sequence[str]:
    values = texts_of(rows, option, column)
    if "" in values:
        raise SchemaMismatchError(
            f"A row has an empty text in the column {column!r}, which {option} names. Filter these rows, or "
            "give them a value."
        )
    return [quote(value, safe="") for value in values]


def _as_json(rows: pa.RecordBatch, option: str, column: str) -> Sequence[str]:
    return list(json_texts(rows.column(column), rows.schema.field(column)))
