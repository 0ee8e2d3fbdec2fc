"""User and password of a database whose address is in the store. Commands and delivery processes.

The server may ask for the password in clear text. So it gets one only if the operator has named it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from ...committers.database.address import DatabaseAddress, ServerAddress
from ...committers.errors import ConfigurationError, shown
from ..stored.table_access import TableAccess

ParsedT = TypeVar("ParsedT")


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables of the environment that name a server, its user and the password."""

    user: str
    password: str
    host: str
    port: str
    default_port: str
    file: str = ""
    """Where passwords may be too."""

    def check_names(self, address: ServerAddress) -> None:
        """
        Raises:
            ConfigurationError: there is a password, but only the store names the server that would get it.
        """
        named = os.environ.get(self.host), os.environ.get(self.port, self.default_port)
        if self.password not in os.environ or named == (address.host, address.port):
            return
        raise ConfigurationError(
            f"The manifest store says that the server of {shown(address.uri)} is {shown(address.host)}, port "
            f"{shown(address.port)}, to which {self.password} would be sent. Nothing was sent. If this is "
            f"the right server, confirm it with {self.host}={address.host} {self.port}={address.port}, or "
            "put the password where the server is named: into the stream's url in the options file "
            f"(--options-file){self.file and f', or into {self.file}'}. Otherwise somebody has changed the "
            "store: find out who can write to it."
        )


def parsed(url: str, parse: Callable[[str], ParsedT], table_uri: str) -> ParsedT:
    """Parse the `url` of a stream.

    Raises:
        ConfigurationError: it is none. The message does not contain it.
    """
    try:
        return parse(url)
    except ValueError as error:
        raise ConfigurationError(f"The url in `streams` for {shown(table_uri)} {error}.") from None


def check_same(given: str, stored: str, table_uri: str) -> None:
    """
    Raises:
        ConfigurationError: the `url` of a stream names another database than the store.
    """
    if given != stored:
        raise ConfigurationError(
            f"The url in `streams` for {shown(table_uri)} is for another database: {given}. Nothing was "
            f"sent. The manifest store has {stored}. Write the url as that of the query; if that is not the "
            "right server, somebody has changed the store: find out who can write to it."
        )


def advice(
    address: DatabaseAddress,
    access: TableAccess,
    docs: str,
    url: str = "...",
    environment: Environment | None = None,
) -> str:
    """What to do if the database denies access to a process that does not have the url of the query.

    Args:
        docs: where the privileges are
        url: its form
    """
    privileges = f"The user needs the privileges that {docs} lists."
    if access.url is not None:
        return (
            "User and password are those in the `url` of the entry for this stream in `streams` of the "
            f"options file; an entry with the name of the query precedes one with the address. {privileges}"
        )
    what, elsewhere = "the url", ""
    if environment is not None:
        what = "user and password"
        elsewhere = f", or as {environment.user} and {environment.password} with {environment.host} and "
        elsewhere += environment.port + (environment.file and f", or in {environment.file}")
    return (
        f"Commands and delivery processes do not have the url of the query. Give them {what} in the options "
        "file (--options-file or $PENSTOCK_OPTIONS_FILE): "
        f'{{"streams": {{"{address.uri}": {{"url": "{url}"}}}}}}{elsewhere}. {privileges}'
    )


def url_form(address: ServerAddress, database: str) -> str:
    """The form of a URL with user and password."""
    host, port, name = (quote(part, safe="") for part in (address.host, address.port, database))
    return f"{address.scheme}://USER:PASSWORD@{host}:{port}/{name}"
