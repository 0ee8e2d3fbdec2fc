"""The data source `penstock.paimon`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import PaimonSink


class PaimonDataSource(PenstockDataSource):
    """Paimon tables, by their path, or by their name in a catalog. See `PenstockDataSource`."""

    format = "penstock.paimon"
    readers = "pypaimon, or Paimon's connector for Spark, Flink or Trino"

    def sink(self) -> PaimonSink:
        from .options import PaimonOptions

        options = PaimonOptions.parse(self.options)
        from .sink import PaimonSink

        return PaimonSink(options)
