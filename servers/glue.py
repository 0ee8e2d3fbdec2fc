"""Runs Glue and S3 on the loopback in a separate process: moto, with checks of table versions and of limits.

As a program, this module is that process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from servers.s3 import s3_client, s3_server


@dataclass(frozen=True)
class GlueServer:
    """A running server. Tests that share it use separate namespaces."""

    options: dict[str, str]
    """Storage options of its S3, from `servers.s3`."""

    @property
    def uri(self) -> str:
        return self.options["AWS_ENDPOINT_URL"]

    @cached_property
    def catalog(self) -> Catalog:
        return load_catalog("glue", **self.properties_at(self.uri))

    @cached_property
    def s3(self) -> Any:
        return s3_client(self.options)

    def properties_at(self, uri: str) -> dict[str, str]:
        """Return properties for pyiceberg's `load_catalog`: Glue through a proxy at `uri`, S3 directly."""
        return {
            "type": "glue",
            "glue.endpoint": uri,
            "glue.region": self.options["AWS_REGION"],
            "glue.access-key-id": "AKIAofGlue",
            "glue.secret-access-key": "s3cret-of-glue",
            "s3.endpoint": self.uri,
            "s3.region": self.options["AWS_REGION"],
            "s3.access-key-id": self.options["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": "s3cret-of-s3",
        }


@contextmanager
def glue_server() -> Iterator[GlueServer]:
    with s3_server("servers.glue") as options:
        yield GlueServer(options)


def _check_versions() -> None:
    """Make moto refuse UpdateTable with an outdated version, as Glue does; moto accepts any version."""
    from moto.core.exceptions import JsonRESTError
    from moto.core.responses import ActionResult
    from moto.glue.responses import GlueResponse

    update, lock = GlueResponse.update_table, threading.Lock()

    def update_table(self: GlueResponse) -> ActionResult:
        version, name = self.parameters.get("VersionId"), self.parameters["TableInput"]["Name"]
        with lock:
            table = self.glue_backend.get_table(self.parameters["DatabaseName"], name)
            if version not in (None, table.as_dict()["VersionId"]):
                raise JsonRESTError("ConcurrentModificationException", "Update table failed due to conflict")
            return update(self)

    GlueResponse.update_table = update_table  # type: ignore[method-assign]


def _check_limits() -> None:
    """Make moto refuse more than 100 partitions in a BatchCreatePartition, as Glue does."""
    from moto.core.exceptions import JsonRESTError
    from moto.core.responses import ActionResult
    from moto.glue.responses import GlueResponse

    create = GlueResponse.batch_create_partition

    def batch_create_partition(self: GlueResponse) -> ActionResult:
        if len(self.parameters["PartitionInputList"]) > 100:
            raise JsonRESTError("ValidationException", "partitionInputList must have at most 100 members")
        return create(self)

    GlueResponse.batch_create_partition = batch_create_partition  # type: ignore[method-assign]


if __name__ == "__main__":
    from moto.server import main

    _check_versions()
    _check_limits()
    main()
