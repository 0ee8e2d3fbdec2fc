"""`python -m penstock.datasource.cli`: the command line where the script `penstock` is not on the path."""

from .app import app

app(prog_name="penstock")
