"""The destinations that a simulation writes: a fake of each format, and one of a service."""

from __future__ import annotations

from typing import TypeAlias

from tests.simulation.database_lake import DatabaseSimLake
from tests.simulation.delta_lake import DeltaSimLake
from tests.simulation.iceberg_lake import IcebergSimLake
from tests.simulation.request_lake import RequestSimLake

SimulatedLake: TypeAlias = DeltaSimLake | IcebergSimLake | RequestSimLake | DatabaseSimLake
"""One table of one format, or one other destination.

The content of a data file in the object store is the tuple of its ids. Product code above the table library
is the real one; each call of the library that would leave the process crosses a `step` or a `request`, and
errors come as the library's own.
"""

LAKES: dict[str, type[SimulatedLake]] = {
    "delta": DeltaSimLake,
    "iceberg": IcebergSimLake,
    "requests": RequestSimLake,
    "database": DatabaseSimLake,
}
