"""User and password of a MySQL database whose address is in the store. Commands and delivery processes."""

from __future__ import annotations

import os
from urllib.parse import quote

from ...committers.errors import shown
from ...committers.mysql.address import MySqlAddress, settings_of
from ..database.credentials import Environment, advice, check_same, parsed, url_form
from ..stored.table_access import TableAccess

_ENVIRONMENT = Environment("MYSQL_USER", "MYSQL_PWD", "MYSQL_HOST", "MYSQL_TCP_PORT", "3306")


def url_for(address: MySqlAddress, access: TableAccess) -> str:
    """Return the URL of the database: the `url` of the stream, if this process has one, else with user and
    password from the environment (`MYSQL_USER`, `MYSQL_PWD`).

    Raises:
        ConfigurationError: the `url` is for another database, or MYSQL_PWD is set and the environment does
            not name this server.
    """
    if access.url is None:
        _ENVIRONMENT.check_names(address)
        return _url_of_environment(address)
    settings = parsed(access.url, settings_of, address.uri)
    check_same(_named(settings["host"], settings["port"]), _named(address.host, address.port), address.uri)
    return access.url


def advice_for(address: MySqlAddress, access: TableAccess) -> str:
    """See `advice`."""
    url = url_form(address, address.schema)
    return advice(address, access, "docs/destinations/mysql.md", url, _ENVIRONMENT)


def _named(host: str, port: str) -> str:
    return f"host {shown(host)}, port {shown(port)}"


def _url_of_environment(address: MySqlAddress) -> str:
    user, password = os.environ.get("MYSQL_USER"), os.environ.get("MYSQL_PWD")
    given = "" if user is None else quote(user, safe="")
    given += "" if password is None else f":{quote(password, safe='')}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"mysql://{given}{'@' if given else ''}{host}:{address.port}/{quote(address.schema, safe='')}"
