"""The data source `penstock.delta`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lake_source import LakeDataSource

if TYPE_CHECKING:
    from .sink import DeltaSink


class DeltaDataSource(LakeDataSource):
    """Delta tables, by their path. See `LakeDataSource`."""

    @classmethod
    def name(cls) -> str:
        return "penstock.delta"

    def sink(self) -> DeltaSink:
        from .options import DeltaOptions
        from .sink import DeltaSink

        return DeltaSink(DeltaOptions.parse(self.options))
