"""The adapter for pyiceberg: all of Penstock's access to private members of the library is in this package.

`tests/committers/test_iceberg_library.py` states the behaviour that Penstock relies on.
"""
