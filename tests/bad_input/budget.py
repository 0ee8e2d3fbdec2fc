"""How many examples the tests of bad input try: few, and always the same ones, unless told otherwise.

PENSTOCK_EXAMPLES=3000 pytest tests/bad_input    tries that many per test, others each time
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings


def examples(usually: int) -> settings:
    """Settings of one property: `usually` examples, or as many as the environment asks for."""
    more = os.environ.get("PENSTOCK_EXAMPLES")
    return settings(
        max_examples=int(more) if more else usually,
        derandomize=more is None,
        database=None,
        deadline=None,
        print_blob=True,
        phases=[phase for phase in Phase if phase is not Phase.explain],  # which may take minutes
        suppress_health_check=list(HealthCheck),
    )
