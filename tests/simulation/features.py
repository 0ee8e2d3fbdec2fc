"""What else a history is about, apart from the faults that all of them have."""

from __future__ import annotations

import random
from dataclasses import dataclass

FEATURES = ("letters", "keys", "new_target", "left_target", "shared_files", "routes", "upserts")
"""
letters      each destination refuses some rows for good, which become dead letters
keys         services keep the last row of each key (the option `keys`)
new_target   the query is started with one target more (newTarget=allow)
left_target  the query is started without one of its targets
routes       the rows name the services that they go to (`routeBy`)
upserts      the query changes rows of a Delta or Iceberg table by key (writeMode=upsert); no seed chooses it
shared_files a Delta table and an Iceberg table have the same data files (`penstock.lake`)
"""


CHANGES = ("new_target", "left_target")
"""Of the targets of a query that runs already."""


@dataclass(frozen=True)
class Chosen:
    """What a history has in place of what its seed says."""

    events: tuple[str, ...] = ()
    """The only external events; empty: those of the seed."""
    targets: int | None = None
    """Of the query."""
    features: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """As arguments of `python -m tests.simulation`."""
        told = [f"--events {' '.join(self.events)}"] if self.events else []
        told += [f"--targets {self.targets}"] if self.targets is not None else []
        told += [" ".join(("--features", *self.features))] if self.features is not None else []
        return " ".join(told)


SEED_CHOOSES = Chosen()


def features_in(seed: int, kinds: tuple[str, ...]) -> frozenset[str]:
    """Of a history with destinations of these kinds; it has at most one of them.

    Only a database refuses rows in the commit: most of its histories have such rows.
    """
    if kinds[0] == "requests" and seed % 12 == 6:
        return frozenset({"routes"})
    rng = random.Random(f"features of {seed}")
    if rng.random() < (2 / 3 if "database" in kinds else 1 / 4):
        return frozenset({"letters"})
    if kinds == ("delta", "iceberg") and rng.random() < 1 / 2:
        return frozenset({"shared_files"})
    others = [*(["keys"] if kinds[0] == "requests" else []), *(CHANGES if len(kinds) > 1 else [])]
    return frozenset({rng.choice(others)} if others and rng.random() < 1 / 2 else ())
