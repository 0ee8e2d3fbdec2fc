"""User and password of a Postgres database whose address is in the store. Commands and delivery processes."""

from __future__ import annotations

from ...committers.errors import shown
from ...committers.postgres.address import PostgresAddress
from ..database.credentials import Environment, advice, check_same, parsed, url_form
from ..stored.table_access import TableAccess

_ENVIRONMENT = Environment("PGUSER", "PGPASSWORD", "PGHOST", "PGPORT", "5432", "~/.pgpass")


def settings_for(address: PostgresAddress, access: TableAccess, table_uri: str) -> dict[str, str]:
    """Return how to connect to the database: as the `url` of the stream says, if this process has one, else
    with user and password from libpq's environment.

    Args:
        table_uri: of the stream's table, for messages

    Raises:
        ConfigurationError: the `url` is for another database, or PGPASSWORD is set and the environment does
            not name this server.
    """
    if access.url is None:
        _ENVIRONMENT.check_names(address)
        return address.settings
    from ...committers.postgres.connection import settings_of

    settings = parsed(access.url, settings_of, table_uri)
    given = PostgresAddress.of(settings, address.schema, address.table)
    check_same(_named(given), _named(address), table_uri)
    return settings


def advice_for(address: PostgresAddress, access: TableAccess) -> str:
    """See `advice`."""
    return advice(address, access, "docs/postgres.md", url_form(address, address.database), _ENVIRONMENT)


def _named(address: PostgresAddress) -> str:
    host, port, database = map(shown, (address.host, address.port, address.database))
    return f"host {host}, port {port}, database {database}"
