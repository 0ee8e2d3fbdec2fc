"""The table of the rows that a commit has refused: they are held there until the manifest store has them.

It is created in the transaction that commits the other rows of the batch, so there is exactly one such table
for a batch, whichever process has committed it. It looks like a staging table, so clean-up finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..contract import Batch, DeadLetter, DeadLetters, Manifest
from .address import PostgresAddress, literal, qualified
from .content import PostgresContent
from .staging import StagingComment, StagingName, drop, refused_name

if TYPE_CHECKING:
    from .connection import Cursor

_COLUMNS = ("letter_id", "row_id", "code", "message", "refused_at", "content")
_DDL = (
    "CREATE TABLE {name} (letter_id text PRIMARY KEY, row_id text NOT NULL, code text NOT NULL, "
    "message text NOT NULL, refused_at timestamptz NOT NULL, content bytea NOT NULL)"
)


def put(
    cursor: Cursor,
    address: PostgresAddress,
    manifest: Manifest,
    content: PostgresContent,
    letters: DeadLetters,
) -> None:
    """Create the tables of refused rows, in the transaction of the commit."""
    if not letters:
        return
    tables = _tables(address, manifest, content)
    ((now,),) = cursor.execute("SELECT now()").fetchall()
    comment = literal(str(StagingComment(now, manifest.batch.stream.query_id)))
    for batch_id, some in letters.items():
        name = tables[batch_id]
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
        cursor.execute(_DDL.format(name=name))
        cursor.execute(f"COMMENT ON TABLE {name} IS {comment}")
        places = ", ".join(["%s"] * len(_COLUMNS))
        escaped = name.replace("%", "%%")
        statement = f"INSERT INTO {escaped} ({', '.join(_COLUMNS)}) VALUES ({places})"
        cursor.executemany(statement, [_values(letter) for letter in some])


def read(
    cursor: Cursor, address: PostgresAddress, manifest: Manifest, content: PostgresContent
) -> DeadLetters:
    """Return the refused rows of the batches that are held, by batch id."""
    found: dict[int, Sequence[DeadLetter]] = {}
    for batch_id, name in _there(cursor, address, manifest, content):
        select = f"SELECT {', '.join(_COLUMNS)} FROM {name} ORDER BY letter_id"
        found[batch_id] = [DeadLetter(*row) for row in cursor.execute(select).fetchall()]
    return found


def delete(cursor: Cursor, address: PostgresAddress, manifest: Manifest, content: PostgresContent) -> None:
    drop(cursor, list(_tables(address, manifest, content).values()))


def _there(
    cursor: Cursor, address: PostgresAddress, manifest: Manifest, content: PostgresContent
) -> Iterable[tuple[int, str]]:
    tables = _tables(address, manifest, content)
    rows = cursor.execute(
        "SELECT n FROM unnest(%s::text[]) WITH ORDINALITY AS t (name, n) WHERE to_regclass(name) IS NOT NULL",
        (list(tables.values()),),
    ).fetchall()
    listed = list(tables.items())
    return [listed[number - 1] for (number,) in rows]


def _tables(address: PostgresAddress, manifest: Manifest, content: PostgresContent) -> dict[int, str]:
    """The SQL names of the tables by batch id, in the schema of the batch's staging tables."""
    schemas: dict[int, str] = {}
    for staged in content.staged:
        name = StagingName.parse(staged.name)
        if name is not None:
            schemas.setdefault(name.batch_id, staged.schema)
    batches: dict[int, Batch] = {batch.batch_id: batch for batch in manifest.batches}
    return {
        batch_id: qualified(schema, refused_name(batches[batch_id], address.sql))
        for batch_id, schema in schemas.items()
        if batch_id in batches
    }


def _values(letter: DeadLetter) -> tuple[object, ...]:
    message = letter.message.replace("\0", "")
    return letter.letter_id, letter.row_id, letter.code, message, letter.refused_at, letter.content
