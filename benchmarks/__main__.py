"""Runs all benchmarks or the named ones; prints Markdown to stdout and progress to stderr.

    python -m benchmarks [NAME …] [--write] [--quick] [--rows N] [--repeat N] [--cases CASE …] [--minutes N]
                         [--commits N]

`--write` puts each page and its pictures into docs/benchmarks/. The exit code is 1 if a bound does not hold.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from benchmarks.measure import Options, print_progress
from benchmarks.report import Report, write_index

NAMES = (
    "throughput",
    "partitions",
    "postgres_sink",
    "postgres_upserts",
    "mysql_sink",
    "mysql_upserts",
    "kafka_sink",
    "requests",
    "kafka_clients",
    "row_log",
    "outage",
    "backlog",
    "tables",
    "reading",
    "arrow_batches",
    "start_settings",
    "small_batches",
    "writer",
    "commits",
    "object_store",
    "uploads",
    "maintenance",
    "memory",
    "store",
    "many_streams",
    "shared_delivery",
    "ui",
    "routes",
    "upserts",
    "soak",
    "import_time",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--write", action="store_true", help="put the pages into docs/benchmarks/")
    parser.add_argument("--quick", action="store_true", help="a short run, with inaccurate figures")
    parser.add_argument("--rows", type=int, help="default: the number that the bounds apply to")
    parser.add_argument("--repeat", type=int, help="runs of each case; default: 5, with --quick 2")
    parser.add_argument("--cases", nargs="+", default=(), help="only these cases; default: all")
    parser.add_argument("--minutes", type=float, help="of the outage; default: 10, with --quick 1")
    parser.add_argument("--commits", type=int, help="into each table; default: 1000, with --quick 100")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"unknown benchmark {', '.join(unknown)}; the benchmarks are {', '.join(NAMES)}")
    repeat = arguments.repeat or (2 if arguments.quick else 5)
    cases = tuple(arguments.cases)
    options = Options(arguments.rows, repeat, arguments.quick, cases, arguments.minutes, arguments.commits)
    shown = [one for one in sys.argv[1:] if one not in (*arguments.names, "--write")]
    holds = True
    for name in arguments.names or NAMES:
        print_progress(f"{name}:")
        report: Report = import_module(f"benchmarks.{name}").run(options)
        report.arguments = " ".join(shown)
        print(report.markdown, flush=True)
        if arguments.write:
            report.write()
            write_index()
        holds &= report.holds
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
