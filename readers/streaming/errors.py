"""Errors of streams whose table, columns or versions are no longer those that they need."""

from __future__ import annotations

from ...committers.errors import ConfigurationError


def dropped(table: str) -> ConfigurationError:
    """
    Args:
        table: its name, at the beginning of a sentence; also below
    """
    return ConfigurationError(f"{table} was dropped. Nothing more was read.")


def replaced(table: str, now: str, before: str) -> ConfigurationError:
    """
    Args:
        now: the id of the table that is there
        before: the id of the one that the stream has read
    """
    return ConfigurationError(
        f"{table} is now another table, with the id {now} and not {before}: it was dropped and created "
        "again, or replaced. Start with a new checkpoint to read it. Nothing more was read."
    )


def cleaned_up(missing: str, keep: str) -> ConfigurationError:
    """
    Args:
        missing: what is no longer there, and why it is needed, as a sentence
        keep: what keeps it for longer, after `let `
    """
    return ConfigurationError(
        f"{missing} So rows could be missing, and nothing more was read. Start with a new checkpoint, which "
        f"begins with all rows of the table, or with startingVersion; for the future let {keep}, or run the "
        "stream more often."
    )


def other_schema(version: str, problems: str) -> ConfigurationError:
    """
    Args:
        version: its name, at the beginning of a sentence
        problems: why its rows do not fit the columns of the stream
    """
    return ConfigurationError(
        f"The schema has changed: {version} has other columns than the stream: {problems}. All rows before "
        "were read, and none of it. Start the query again, which then reads the columns that the table has "
        "now; or name in the option columns those that have not changed; or begin with a later version."
    )
