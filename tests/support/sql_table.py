"""Tables of databases that others change in SQL, and a COMMIT of a query that goes wrong."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, cast

from tests.support.faults import in_next_call

from penstock.committers.database import transaction
from penstock.testing.conformance import DestinationHarness, Lost
from penstock.testing.conformance.harness import ChangedRow


class SqlTableHarness(DestinationHarness):
    """The table `events`, changed by others in SQL."""

    lost_connection: ClassVar[Exception]
    """What the client raises if the server does not respond to a COMMIT."""

    @abstractmethod
    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run by another writer, with autocommit."""

    def changed_rows(self) -> Sequence[ChangedRow]:
        return cast("Sequence[ChangedRow]", self.sql("SELECT id, n, text FROM events"))

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        def answer(connection: Any) -> None:
            if lost == "response":
                connection.commit()
            else:
                connection.close()  # a server only sees a closed connection
            raise self.lost_connection

        return commit_answers(answer)

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            self.sql(f"DROP TABLE {name}")

    def append(self, row_id: int) -> None:
        self.sql(f"INSERT INTO events (id) VALUES ({row_id})")

    def drop(self) -> None:
        self.sql("DROP TABLE events")

    def recreate(self) -> None:
        self.drop()
        self.sql("CREATE TABLE events (id BIGINT)")

    def roll_back(self) -> None:
        """After a restore, only the fence says which batches the table has."""
        self.sql("UPDATE penstock_fence SET batch_id = batch_id - 1")


def commit_answers(answer: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Inside the block the next COMMIT of a committer goes as `answer` does it with the connection."""

    def commit(_real: object, server: Any, connection: Any) -> Exception | None:
        try:
            answer(connection)
        except server.errors as error:
            return cast("Exception", error)
        return None

    return in_next_call(transaction, "_commit", commit)
