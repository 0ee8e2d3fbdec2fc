"""The catalog of an Iceberg table: a named one that pyiceberg loads, or one embedded in a folder.

Runs on the driver and in the delivery process. Executors never see a catalog: they get the properties for
file I/O (`io_properties`). Error messages of catalogs and their drivers may contain URLs and properties, so
they are passed through `redacted`, and such an error is never set as the cause of ours.
"""

from __future__ import annotations

import os
import posixpath
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..error_causes import ErrorCause, cause_of
from ..errors import NEXT_TRY, AccessRefusedError, ConfigurationError, PenstockError, RetryableError
from ..texts.safe_text import get_logger
from .object_store import IO_PREFIXES
from .redaction import redacted

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

logger = get_logger(__name__)

EMBEDDED_NAME = "penstock"
"""Name of the embedded catalog. Other programs open it with `load_catalog("penstock", type="sql", uri=...,
...)`.
"""

DEFAULT_NAME = "default"
"""pyiceberg's name for a catalog without a name."""

SQLITE_FILE = "catalog.sqlite"
SQLITE_TIMEOUT_S = 60
"""How long a commit to the embedded catalog waits for another one."""

OPEN_CATALOGS_MAX = 8

FILE_IO = f"{__package__}.file_io.TableFileIO"
"""Default file I/O of pyiceberg for metadata."""

_WAYS = (
    "Set either the option warehouse, a folder for tables and catalog, or the option catalog and/or "
    "catalog.* options (catalog.type, catalog.uri, ...) as for pyiceberg's load_catalog."
)


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """How to open a catalog. Can be pickled; stays on the driver."""

    name: str
    properties: Mapping[str, str] = field(repr=False)
    """In pyiceberg's form. May contain secrets."""
    warehouse: str | None = None
    """Absolute path of the folder; only for an embedded catalog."""

    @classmethod
    def of(
        cls, catalog: str | None, properties: Mapping[str, str], warehouse: str | None = None
    ) -> CatalogConfig:
        """Build the configuration from the options `catalog`, `catalog.*` and `warehouse`.

        Raises:
            ConfigurationError: they specify no catalog, or an embedded one that is not on the local disk.
        """
        if catalog is None and not properties:
            if not warehouse:
                raise ConfigurationError(f"No Iceberg catalog is configured. {_WAYS}")
            return cls(EMBEDDED_NAME, {}, _local_folder(warehouse))
        if catalog is not None and (not catalog.strip() or "://" in catalog):
            raise ConfigurationError(
                "The option catalog must be a name, e.g. catalog=prod. Set a URL with the option catalog.uri."
            )
        merged = dict(properties)
        if warehouse and merged.setdefault("warehouse", warehouse) != warehouse:
            raise ConfigurationError(
                "The options warehouse and catalog.warehouse differ. Remove one of them."
            )
        return cls(catalog or DEFAULT_NAME, merged)

    @property
    def is_embedded(self) -> bool:
        return self.warehouse is not None

    @property
    def address_name(self) -> str:
        """The catalog's part of a table's address."""
        return self.warehouse or self.name

    @property
    def embedded_properties(self) -> dict[str, str]:
        """Properties to open the embedded catalog, in Penstock and in other programs."""
        from sqlalchemy import URL

        assert self.warehouse is not None, "only for an embedded catalog"
        file = str(Path(self.warehouse, SQLITE_FILE))
        url = URL.create("sqlite", database=file, query={"timeout": str(SQLITE_TIMEOUT_S)})
        return {"uri": url.render_as_string(), "warehouse": f"file://{self.warehouse}"}


def _local_folder(warehouse: str) -> str:
    path = warehouse.removeprefix("file://") if warehouse.startswith("file:///") else warehouse
    if ":/" in path:
        raise ConfigurationError(
            f"The warehouse {redacted(warehouse, {})!r} is not on the local disk, where the embedded "
            "catalog stores its SQLite file. Use a local path, or also configure a catalog (options "
            "catalog.type, catalog.uri)."
        )
    if set(path) & set("%?#\n"):
        raise ConfigurationError(
            f"The warehouse {warehouse!r} has a '%', '?', '#' or line break in its path, which readers of "
            "Iceberg tables interpret as parts of a URL. Use another path."
        )
    return posixpath.normpath(Path(path).absolute())


# Opening ------------------------------------------------------------------------------------------

_open: OrderedDict[tuple[object, ...], Catalog] = OrderedDict()
_open_lock = threading.Lock()


class MissingCatalogError(RetryableError):
    """The file of an embedded catalog does not exist."""


def open_catalog(config: CatalogConfig, *, create: bool = True) -> Catalog:
    """Open the catalog. Cached per process.

    Args:
        create: create an embedded catalog if it does not exist. Read-only operations must not do that: the
            folder may be the empty mount point of a disk that is not mounted.

    Raises:
        ConfigurationError: it cannot be opened as configured. Contains no secrets.
        MissingCatalogError: it does not exist, and `create` is False.
        RetryableError: it cannot be reached now. Contains no secrets.
    """
    try:
        key = _identity(config, create)
        with _open_lock:
            if key not in _open:
                _open[key] = _load(config)
                while len(_open) > OPEN_CATALOGS_MAX:
                    _open.popitem(last=False)
            _open.move_to_end(key)
            return _open[key]
    except Exception as error:  # noqa: BLE001  catalog drivers raise errors of any type
        raise catalog_error(error, "cannot be opened", config) from None


def _identity(config: CatalogConfig, create: bool) -> tuple[object, ...]:
    """Cache key. A forked process must not use its parent's connections, nor connections to a deleted SQLite
    file.
    """
    file: tuple[int, int] | None = None
    if config.warehouse is not None:
        path = Path(config.warehouse, SQLITE_FILE)
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise MissingCatalogError(_missing(config)) from None
        file = (status.st_dev, status.st_ino)
    return os.getpid(), config.name, tuple(sorted(config.properties.items())), config.warehouse, file


def _missing(config: CatalogConfig) -> str:
    return (
        f"There is no Iceberg catalog in the warehouse {config.warehouse}. Nothing was committed. Is its "
        f"disk mounted? {NEXT_TRY} If the folder was deleted, restore it, or start the query with a new "
        "checkpoint to write a new table from the beginning."
    )


def _load(config: CatalogConfig) -> Catalog:
    from pyiceberg.io import PY_IO_IMPL
    from pyiceberg.utils.config import Config, merge_config

    from .library.catalogs import open_library_catalog

    if config.is_embedded:
        return _load_embedded(config)
    check_address_given(config)
    with warnings.catch_warnings():  # pyiceberg's deprecation notices quote catalog.uri as it is
        warnings.simplefilter("ignore", DeprecationWarning)
        properties: Any = merge_config(
            {PY_IO_IMPL: FILE_IO, **(Config().get_catalog_config(config.name) or {})}, dict(config.properties)
        )
        return open_library_catalog(config.name, properties)


def _load_embedded(config: CatalogConfig) -> Catalog:
    """Two processes may create the catalog at the same time, and pyiceberg checks each of its two tables
    before it creates it. Each failure means that one more table exists, so the third attempt succeeds.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io import PY_IO_IMPL
    from sqlalchemy.exc import OperationalError

    from .library.table_file_io import CatalogFileIO, add_hooks

    properties = {**config.embedded_properties, PY_IO_IMPL: FILE_IO}
    for _ in range(2):
        try:
            return add_hooks(SqlCatalog(EMBEDDED_NAME, **properties), CatalogFileIO)
        except OperationalError as error:
            if "already exists" not in str(error):
                raise
    return add_hooks(SqlCatalog(EMBEDDED_NAME, **properties), CatalogFileIO)


def catalog_error(error: Exception, what: str, config: CatalogConfig) -> PenstockError:
    """Convert an error of a catalog. Raise it `from None`: the text of the cause may contain secrets."""
    from pyiceberg.exceptions import NotInstalledError

    if isinstance(error, PenstockError):
        return error
    text = in_short(error, config) or type(error).__name__
    where = f"The catalog {config.address_name!r} {what}: {text}."
    cause = cause_of(error)
    if cause is ErrorCause.OUTAGE:
        return RetryableError(
            f"{where} Nothing was committed. Check that the catalog and its storage can be reached and that "
            f"their addresses are right (catalog.uri, catalog.s3.endpoint, ...). {NEXT_TRY}"
        )
    if cause is ErrorCause.REFUSED:
        return AccessRefusedError(
            f"{where} Nothing was committed. Access is denied: fix the credentials in the options "
            "catalog.*, or grant this user access to the catalog and its storage."
        )
    if isinstance(error, (ImportError, NotInstalledError)):
        return ConfigurationError(
            f"{where} Install the extra for this type of catalog: penstock[glue] or penstock[hive]; "
            "pyiceberg[...] for others."
        )
    return ConfigurationError(f"{where} Fix the options catalog, catalog.* and warehouse.")


def known_properties(config: CatalogConfig) -> dict[str, str]:
    """All properties that pyiceberg opens the catalog with: its own configuration and environment, overridden
    by ours.
    """
    from pyiceberg.utils.config import Config

    try:
        own = Config().get_catalog_config(config.name) or {}
    except Exception:  # noqa: BLE001  the error being reported is about this broken file
        own = {}
    return {**flat(own), **config.properties}


def in_short(error: Exception, config: CatalogConfig) -> str:
    """The text of an error of the catalog or of its storage, without secrets."""
    return redacted(error, known_properties(config))


def check_address_given(config: CatalogConfig) -> None:
    """
    Raises:
        ConfigurationError: neither the options nor pyiceberg's own configuration say where the catalog is.
    """
    from .library.catalogs import needs_uri

    if config.is_embedded or not needs_uri(known_properties(config)):
        return
    name = "".join(char if char.isalnum() else "_" for char in config.name.upper())
    raise ConfigurationError(
        f"The catalog {config.name!r} cannot be opened: its address is missing. A query gives it as "
        "the options catalog.type and catalog.uri. Commands and delivery processes need the same properties "
        "again: the manifest store has the names of the catalog and the table, but no properties, which may "
        "hold credentials. Give them with --catalog type=rest --catalog uri=https://catalog.example, as "
        '"catalog" in the JSON file of --options-file, as JSON in $PENSTOCK_CATALOG, or as '
        "start_delivery(catalog={...}). All of them also read pyiceberg's own configuration, .pyiceberg.yaml "
        f"and PYICEBERG_CATALOG__{name}__URI."
    )


def flat(properties: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Flatten a catalog's properties to strings: REST catalogs have nested ones."""
    strings = {}
    for key, value in properties.items():
        if isinstance(value, Mapping):
            strings.update(flat(value, f"{prefix}{key}."))
        else:
            strings[prefix + key] = str(value)
    return strings


# File I/O -----------------------------------------------------------------------------------------

_IO_NAMES = ("py-io-impl", "DEFAULT_SCHEME", "DEFAULT_NETLOC", "buffer-size")


def is_io_property(name: str) -> bool:
    """Return True if this property of a catalog configures how files are read and written."""
    return name.startswith(IO_PREFIXES) or name in _IO_NAMES


def warn_of_ignored_properties(table: Table, uri: str) -> None:
    """Log once per process which file I/O properties of the table Penstock ignores."""
    used: Mapping[str, object] = table.io.properties
    ignored = [
        name for name, value in table.properties.items() if is_io_property(name) and used.get(name) != value
    ]
    if ignored:
        _warn_of_ignored(uri, tuple(sorted(ignored)))


@lru_cache(maxsize=1000)
def _warn_of_ignored(uri: str, names: tuple[str, ...]) -> None:
    logger.warning(
        "Penstock ignores these properties of the Iceberg table %s: %s. Anyone who can write the table can "
        "set them, and they decide who receives the credentials of the catalog. If the files need them, "
        "set the options %s for the query, `penstock deliver` and `penstock gc`; otherwise remove them.",
        uri,
        ", ".join(names),
        ", ".join(f"catalog.{name}" for name in names),
    )


def io_properties(table: Table) -> dict[str, str]:
    """Properties that executors need to read and write the table's files, including vended credentials.

    Contains nothing else of the catalog: neither its address nor its token.

    Raises:
        ConfigurationError: the catalog requires remote signing, and executors cannot call the catalog.
    """
    properties: Mapping[str, object] = table.io.properties
    if properties.get("s3.signer") or str(properties.get("s3.remote-signing-enabled")).lower() == "true":
        raise ConfigurationError(
            f"The catalog of the Iceberg table {'.'.join(table.name())} requires remote signing of requests "
            "to the storage, but executors have no access to the catalog. Use vended credentials instead: "
            "catalog.header.X-Iceberg-Access-Delegation=vended-credentials, or set catalog.s3.* options."
        )
    return {
        key: str(value)
        for key, value in properties.items()
        if is_io_property(key)
        and isinstance(value, (str, int, float, bool))
        and not key.startswith("s3.signer")
        and value != FILE_IO
    }
