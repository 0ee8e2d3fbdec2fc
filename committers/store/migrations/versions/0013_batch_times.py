"""When a batch was planned, and when its tasks had written it."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    for name in ("planned_at", "written_at"):
        op.add_column("penstock_manifests", sa.Column(name, sa.DateTime(timezone=True)))
