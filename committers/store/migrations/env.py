"""Run by Alembic for every upgrade, on the connection and inside the transaction that the caller holds."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
)
context.run_migrations()
