"""Adapter for pyiceberg: all access to private members of the library is in this package.

`tests/committers/test_iceberg_library.py` tests the behaviour that Penstock relies on.
"""
