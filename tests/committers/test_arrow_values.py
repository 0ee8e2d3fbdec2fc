"""Arrays that are made without `pa.array` are equal to those of `pa.array`."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.committers.arrow_values import (
    fixed_size_bytes,
    null_scalar,
    numeric_array,
    numeric_scalar,
    string_array,
)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("values", [[], [7], [-1, 0, 2**24, -(2**24)]])
def test_numbers(kind: pa.DataType, values: list[int]) -> None:
    made = numeric_array(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


def test_one_number() -> None:
    assert numeric_scalar(5).equals(pa.scalar(5))
    assert math.isnan(numeric_scalar(math.nan, pa.float32()).as_py())
    with pytest.raises(OverflowError):
        numeric_scalar(2**31, pa.int32())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@given(values=st.lists(st.none() | st.text(max_size=5), max_size=40))
def test_texts(kind: pa.DataType, values: list[str | None]) -> None:
    made = string_array(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


@given(st.lists(st.none() | st.binary(min_size=16, max_size=16), max_size=40))
def test_bytes_of_a_fixed_size(values: list[bytes | None]) -> None:
    made = fixed_size_bytes(values, 16)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.binary(16)))


def test_null() -> None:
    assert null_scalar(pa.string()).equals(pa.scalar(None, pa.string()))
