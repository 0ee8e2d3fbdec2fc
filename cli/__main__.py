"""`python -m penstock.cli`: the command line where the script `penstock` is not on the path."""

from .app import app

if __name__ == "__main__":
    app(prog_name="penstock")
