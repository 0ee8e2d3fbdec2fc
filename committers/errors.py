"""Errors, by what the caller can do about them.

    PenstockError
    ├── ConfigurationError          fix the options or the environment, start again
    │   └── StoreUnreachableError   the database does not answer, or refuses the connection
    ├── SchemaMismatchError         the rows do not fit the table: change the query or the table
    ├── TableNotSupportedError      the table has a feature that direct commits would violate
    ├── TableChangedError           the table was dropped, re-created or restored: an operator decides
    ├── CheckpointMismatchError     the checkpoint and the table disagree about a batch: an operator decides
    ├── CheckpointGoneError         undelivered batches need this checkpoint: restore it, or abort them
    ├── FencedError                 another run of the query has taken over: let this one end
    ├── RetryableError              nothing was committed: start again, or let it be delivered again
    │   ├── AccessRefusedError      access is denied: fix options or permissions; also a ConfigurationError
    │   └── StoreFailedError        the store's database did not answer a call
    ├── CommitStateUnknownError     the commit may have succeeded: start again, recovery checks the table
    └── ManifestCorruptError        the store's content is damaged: restore the store

Each error has one message and nothing else, so that it can be pickled between Spark's processes. The message
has a maximum length, and contains no credentials of URLs and no control characters, even if it quotes other
text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import ClassVar

from .texts.safe_text import safe, shortened, without_credentials

MESSAGE_MAX = 4000
"""Maximum length of a message. The middle of a longer one is left out."""


class PenstockError(Exception):
    """Root of all errors that Penstock raises on purpose."""

    restart_helps: ClassVar[bool] = False
    """True if starting the query again may be enough, without any change by an operator."""

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(safe(str(message)), MESSAGE_MAX))


class ConfigurationError(PenstockError):
    """Options or environment are wrong. Raised before any data is written."""


class StoreUnreachableError(ConfigurationError):
    """No connection to the store's database could be opened: it is down, or the URL is wrong."""

    restart_helps = True


class StoreMissingError(ConfigurationError):
    """The database has no manifest store."""


class SchemaMismatchError(PenstockError):
    """Writing the rows into the table would change or lose values."""


class TableNotSupportedError(PenstockError):
    """The table has a feature that does not allow committing data files directly. The message names it."""


class TableChangedError(PenstockError):
    """The table is no longer the one that the stream wrote: it was dropped, re-created, or restored to an
    earlier state.
    """


class CheckpointMismatchError(PenstockError):
    """A committed batch id has other source offsets: the checkpoint was reset, rewound or copied. Also raised
    for `newQuery=refuse` if the first batch of a new checkpoint would duplicate rows of an earlier query.
    """


class CheckpointGoneError(PenstockError):
    """The checkpoint of undelivered batches is missing, or belongs to another query. An operator has to
    decide.
    """


class FencedError(PenstockError):
    """A newer run of the same query holds the claim on the stream."""


class RetryableError(PenstockError):
    """The batch was certainly not committed. It stays PREPARED, and the next start commits it."""

    restart_helps = True


class AccessRefusedError(ConfigurationError, RetryableError):
    """Storage, catalog or database deny access, or the configured target does not exist. Nothing was
    committed.

    Deliveries continue once the permissions are corrected.
    """


class StoreFailedError(RetryableError):
    """The store's database did not answer, or broke off a transaction. The call changed nothing."""


class CommitStateUnknownError(PenstockError):
    """The commit may or may not have succeeded. Nothing is deleted; the next recovery checks the table."""

    restart_helps = True


class ManifestCorruptError(PenstockError):
    """A manifest in the store does not match its checksum or cannot be decoded."""


NEXT_TRY = "The query's next start, or its next delivery, tries again."
"""The next step after an outage. It fits errors of queries and of deliveries."""

SHOWN_MAX = 200
"""Maximum length of a value shown in a message."""


def shown(given: str) -> str:
    """Quote a value for a message: shortened, and without passwords in URLs."""
    text = without_credentials(given)
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…")


@contextmanager
def of_target(name: str) -> Iterator[None]:
    """Begin the message of an error with the name of the target, if it has one."""
    try:
        yield
    except PenstockError as error:
        if not name:
            raise
        raise type(error)(f"Target {name}: {error}") from error


def check_installed(
    needed_by: str,
    library: str,
    package: str,
    *,
    module: str | None = None,
    where: str = "driver and the executors",
    note: str = "",
) -> None:
    """Check that a library is installed.

    Args:
        needed_by: such as `penstock.postgres needs`
        package: what pip installs it with, such as `penstock[postgres]`
        module: of the library, if it has another name

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import_module(module or library)
    except ImportError as error:
        raise ConfigurationError(
            f"{needed_by} {library}, which is not installed here ({error}). On the {where}, run: pip install "
            f"'{package}'{note}"
        ) from error
