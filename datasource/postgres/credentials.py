"""User and password of a Postgres database whose address is in the store. Commands and delivery processes."""

from __future__ import annotations

import os
from urllib.parse import quote

from ...committers.errors import ConfigurationError, shown
from ...committers.postgres.address import PostgresAddress
from ..stored.table_access import TableAccess


def settings_for(address: PostgresAddress, access: TableAccess, table_uri: str) -> dict[str, str]:
    """Return how to connect to the database: as the `url` of the stream says, if this process has one, else
    with user and password from libpq's environment.

    The server may ask for the password in clear text. So it gets one only if the operator has named it too,
    in the `url` or in PGHOST.

    Args:
        address: of a table in the database
        table_uri: of the stream's table, for messages

    Raises:
        ConfigurationError: the `url` is for another database, or PGPASSWORD is set and the environment does
            not name this server.
    """
    if access.url is None:
        _check_password_is_for(address)
        return address.settings
    from ...committers.postgres.connection import settings_of

    try:
        settings = settings_of(access.url)
    except ValueError as error:
        raise ConfigurationError(f"The url in `streams` for {shown(table_uri)} {error}.") from None
    given = PostgresAddress.of(settings, address.schema, address.table)
    if given != address:
        raise ConfigurationError(
            f"The url in `streams` for {shown(table_uri)} is for another database: {_named(given)}. Nothing "
            f"was sent. The manifest store has {_named(address)}. Write the url as that of the query; if "
            "that is not the right server, somebody has changed the store: find out who can write to it."
        )
    return settings


def advice_for(address: PostgresAddress, access: TableAccess) -> str:
    """What to do if the database denies access to a process that does not have the url of the query."""
    if access.url is not None:
        return (
            "User and password are those in the `url` of the entry for this stream in `streams` of the "
            "options file; an entry with the name of the query precedes one with the address. The user "
            "needs the privileges that docs/postgres.md lists."
        )
    host, port, database = (quote(part, safe="") for part in (address.host, address.port, address.database))
    return (
        "Commands and delivery processes do not have the url of the query. Give them user and password in "
        "the options file (--options-file or $PENSTOCK_OPTIONS_FILE): "
        f'{{"streams": {{"{address.uri}": {{"url": '
        f'"postgresql://USER:PASSWORD@{host}:{port}/{database}"}}}}}}, '
        "or as PGUSER and PGPASSWORD with PGHOST and PGPORT, or in ~/.pgpass. The user needs the privileges "
        "that docs/postgres.md lists."
    )


def _named(address: PostgresAddress) -> str:
    host, port, database = map(shown, (address.host, address.port, address.database))
    return f"host {host}, port {port}, database {database}"


def _check_password_is_for(address: PostgresAddress) -> None:
    """Refuse to send PGPASSWORD to a server that only the store names."""
    named = os.environ.get("PGHOST"), os.environ.get("PGPORT", "5432")
    if "PGPASSWORD" in os.environ and named != (address.host, address.port):
        raise ConfigurationError(
            f"The manifest store says that the server of {shown(address.uri)} is {shown(address.host)}, port "
            f"{shown(address.port)}, to which PGPASSWORD would be sent. Nothing was sent. If this is the "
            f"right server, confirm it with PGHOST={address.host} PGPORT={address.port}, or put the password "
            "where the server is named: into the stream's url in the options file (--options-file), or into "
            "~/.pgpass. Otherwise somebody has changed the store: find out who can write to it."
        )
