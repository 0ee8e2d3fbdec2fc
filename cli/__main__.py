"""Run the command line with `python -m penstock.cli`, where the script `penstock` is not on the path."""

from .app import app

if __name__ == "__main__":
    app(prog_name="penstock")
