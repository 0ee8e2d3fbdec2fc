"""The suite: all claims in one class."""

from __future__ import annotations

from .changes import ChangeClaims
from .checks import CheckClaims
from .cleaning import CleaningClaims
from .commits import CommitClaims
from .concurrency import ConcurrencyClaims
from .crashes import CrashClaims
from .data import DataClaims
from .deliveries import DeliveryClaims
from .echoes import EchoClaims
from .histories import HistoryClaims
from .manifests import ManifestClaims
from .partial_rows import PartialRowClaims
from .reads import ReadClaims
from .responses import ResponseClaims
from .routes import RouteClaims
from .schemas import SchemaClaims
from .secrecy import SecrecyClaims
from .upserts import UpsertClaims
from .values import ValueClaims


class DestinationConformance(
    CommitClaims,
    CrashClaims,
    ResponseClaims,
    ConcurrencyClaims,
    ChangeClaims,
    DataClaims,
    ValueClaims,
    SchemaClaims,
    CheckClaims,
    ManifestClaims,
    SecrecyClaims,
    EchoClaims,
    DeliveryClaims,
    RouteClaims,
    UpsertClaims,
    PartialRowClaims,
    HistoryClaims,
    CleaningClaims,
    ReadClaims,
):
    """The promises of every destination. Subclass it as `Test…`, with a fixture `harness`."""
