"""Run by Alembic for each upgrade, on the caller's connection and in the caller's transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
)
context.run_migrations()
