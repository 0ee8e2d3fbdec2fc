"""User and password of a MySQL database whose address is in the store. Commands and delivery processes."""

from __future__ import annotations

import os
from urllib.parse import quote

from ...committers.errors import ConfigurationError, shown
from ...committers.mysql.address import MySqlAddress, settings_of
from ..stored.table_access import TableAccess


def url_for(address: MySqlAddress, access: TableAccess, table_uri: str) -> str:
    """Return the URL of the database: the `url` of the stream, if this process has one, else with user and
    password from the environment (`MYSQL_USER`, `MYSQL_PWD`).

    The server may ask for the password in clear text. So it gets one only if the operator has named it too,
    in the `url` or in MYSQL_HOST.

    Args:
        address: of a table in the database
        table_uri: of the stream's table, for messages

    Raises:
        ConfigurationError: the `url` is for another database, or MYSQL_PWD is set and the environment does
            not name this server.
    """
    if access.url is None:
        return _url_of_environment(address)
    try:
        settings = settings_of(access.url)
    except ValueError as error:
        raise ConfigurationError(f"The url in `streams` for {shown(table_uri)} {error}.") from None
    if (settings["host"], settings["port"]) != (address.host, address.port):
        given = f"host {shown(settings['host'])}, port {shown(settings['port'])}"
        raise ConfigurationError(
            f"The url in `streams` for {shown(table_uri)} is for another database: {given}. Nothing was "
            f"sent. The manifest store has host {shown(address.host)}, port {shown(address.port)}. Write the "
            "url as that of the query; if that is not the right server, somebody has changed the store: find "
            "out who can write to it."
        )
    return access.url


def advice_for(address: MySqlAddress, access: TableAccess) -> str:
    """What to do if the database denies access to a process that does not have the url of the query."""
    privileges = "The user needs the privileges that docs/destinations/mysql.md lists."
    if access.url is not None:
        return (
            "User and password are those in the `url` of the entry for this stream in `streams` of the "
            "options file; an entry with the name of the query precedes one with the address. " + privileges
        )
    host, port, database = (quote(part, safe="") for part in (address.host, address.port, address.schema))
    return (
        "Commands and delivery processes do not have the url of the query. Give them user and password in "
        "the options file (--options-file or $PENSTOCK_OPTIONS_FILE): "
        f'{{"streams": {{"{address.uri}": {{"url": '
        f'"mysql://USER:PASSWORD@{host}:{port}/{database}"}}}}}}, '
        f"or as MYSQL_USER and MYSQL_PWD with MYSQL_HOST and MYSQL_TCP_PORT. {privileges}"
    )


def _url_of_environment(address: MySqlAddress) -> str:
    user, password = os.environ.get("MYSQL_USER"), os.environ.get("MYSQL_PWD")
    named = os.environ.get("MYSQL_HOST"), os.environ.get("MYSQL_TCP_PORT", "3306")
    if password is not None and named != (address.host, address.port):
        raise ConfigurationError(
            f"The manifest store says that the server of {shown(address.uri)} is {shown(address.host)}, port "
            f"{shown(address.port)}, to which MYSQL_PWD would be sent. Nothing was sent. If this is the "
            f"right server, confirm it with MYSQL_HOST={address.host} MYSQL_TCP_PORT={address.port}, or put "
            "the password where the server is named: into the stream's url in the options file "
            "(--options-file). "
            "Otherwise somebody has changed the store: find out who can write to it."
        )
    given = "" if user is None else quote(user, safe="")
    given += "" if password is None else f":{quote(password, safe='')}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"mysql://{given}{'@' if given else ''}{host}:{address.port}/{quote(address.schema, safe='')}"
