"""What can go wrong, by what the caller may do about it.

    PenstockError
    ├── ConfigurationError          fix the options or the environment, start again
    │   └── StoreUnreachableError   the database does not answer, or refuses the connection
    ├── SchemaMismatchError         the rows do not fit the table: change the query or the table
    ├── TableNotSupportedError      the table needs something that direct commits would violate
    ├── TableChangedError           dropped, re-created or restored under the stream: an operator decides
    ├── CheckpointMismatchError     the checkpoint and the table disagree about a batch: an operator decides
    ├── CheckpointGoneError         what waits for the checkpoint waits for ever: put it back, or give it up
    ├── FencedError                 another run of the query has taken over: let this one end
    ├── RetryableError              nothing landed: start again, or let it be delivered again
    │   └── AccessRefusedError      access is denied: correct options or rights; also a ConfigurationError
    ├── CommitStateUnknownError     the batch may have landed: start again, recovery looks at the table
    └── ManifestCorruptError        the store's content is damaged: restore the store

All carry one message and nothing else, so that they survive pickling between Spark's processes. The message
shows no credentials of URLs and no control characters, whatever text of others it quotes, and has a bound.
"""

from __future__ import annotations

from .safe_text import safe, shortened, without_credentials

MESSAGE_MAX = 4000
"""Characters of a message; the middle of a longer one is left out."""


class PenstockError(Exception):
    """Root of all errors that Penstock raises on purpose."""

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(safe(str(message)), MESSAGE_MAX))


class ConfigurationError(PenstockError):
    """Options or environment are wrong. Raised before any data moves."""


class StoreUnreachableError(ConfigurationError):
    """No connection to the database of the manifests could be opened: it is down, or the URL is wrong."""


class SchemaMismatchError(PenstockError):
    """The rows cannot be written into the table without changing or losing something."""


class TableNotSupportedError(PenstockError):
    """The table has a feature that committing data files directly would violate. Names the feature."""


class TableChangedError(PenstockError):
    """The table is no longer the one that the stream wrote: dropped, re-created, or restored to before it."""


class CheckpointMismatchError(PenstockError):
    """A committed batch id came back with other source offsets: reset, rewound or copied checkpoint. Or the
    first batch of a new checkpoint would double what an earlier one wrote, and `newQuery=refuse` is set.
    """


class CheckpointGoneError(PenstockError):
    """The checkpoint that undelivered batches wait for is gone, or another query's: an operator decides."""


class FencedError(PenstockError):
    """A newer run of the same query holds the claim on the stream."""


class RetryableError(PenstockError):
    """The commit provably did not land. The batch stays PREPARED and the next start commits it."""


class AccessRefusedError(ConfigurationError, RetryableError):
    """Storage, catalog or database deny access, or do not have what the options name. Nothing landed.

    A delivery goes on by itself once the rights are corrected.
    """


class CommitStateUnknownError(PenstockError):
    """The commit may or may not have landed. Nothing is deleted; the next recovery looks at the table."""


class ManifestCorruptError(PenstockError):
    """A manifest read from the store is not the one that was written."""


NEXT_TRY = "The query's next start, or its next delivery, tries again."
"""What to do after an outage, for whoever reads of it: of a query that has failed, or of a delivery."""

SHOWN_MAX = 200
"""Characters of a value that stand in a message."""


def shown(given: str) -> str:
    """What was given, in quotes, for messages: without passwords in URLs, and not without end."""
    text = without_credentials(given)
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…")
