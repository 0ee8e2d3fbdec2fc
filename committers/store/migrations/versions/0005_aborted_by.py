"""A column for what aborted a batch. Earlier versions encoded it in the first words of the reason."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("penstock_manifests", sa.Column("aborted_by", sa.Text))
    op.execute(
        "UPDATE penstock_manifests SET aborted_by = CASE WHEN reason LIKE 'skipped by%' THEN 'skip' "
        "WHEN reason LIKE 'aborted by%' THEN 'abort' ELSE 'replay' END WHERE state = 'ABORTED'"
    )
