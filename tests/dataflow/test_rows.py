"""Arrow's values as Python's: the same whether pandas is installed or not, and whatever a file holds."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from kernelsight.dataflow.rows import python_rows, python_values

FAR = 2**60  # beyond what DuckDB and Python hold as a time
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
VALUES = {
    "time of nanoseconds": (pa.array([1, None], pa.time64("ns")), ["00:00:00.000000001", None]),
    "whole microseconds": (pa.array([1000], pa.timestamp("ns")), ["1970-01-01 00:00:00.000001"]),
    "zone": (pa.array([1], pa.timestamp("ns", "UTC")), ["1970-01-01 00:00:00.000000001+00"]),
    "unknown zone": (pa.array([1], pa.timestamp("us", "Nowhere/None")), ["1970-01-01 00:00:00.000001+00"]),
    "duration": (pa.array([1000], pa.duration("ns")), ["00:00:00.000001"]),
    "nested": (
        pa.array([[{"a": 1}]], pa.list_(pa.struct([("a", pa.time64("ns"))]))),
        ["[{'a': '00:00:00.000000001'}]"],
    ),
    "coded": (pa.array([1], pa.timestamp("ns")).dictionary_encode(), ["1970-01-01 00:00:00.000000001"]),
    "after the year 9999": (pa.array([2**30], pa.date32()), ["2941775-04-07"]),
    "beyond every calendar": (pa.array([FAR, None], pa.timestamp("s")), [f"<value out of range: {FAR}>", None]),
    "not UTF-8": (NOT_UTF8, ['"\N{REPLACEMENT CHARACTER}"']),
    "what Python holds": (pa.array([1], pa.timestamp("us")), [datetime.datetime(1970, 1, 1, 0, 0, 0, 1)]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_that_python_cannot_hold_become_text(name: str) -> None:
    values, expected = VALUES[name]
    assert python_values(pa.chunked_array([values])) == expected


def test_the_other_columns_of_a_row_stay_as_they_are() -> None:
    table = pa.table({"n": [1, 2], "at": pa.array([1, 2], pa.time64("ns")), "name": ["a", None]})
    assert python_rows(table) == [
        {"n": 1, "at": "00:00:00.000000001", "name": "a"},
        {"n": 2, "at": "00:00:00.000000002", "name": None},
    ]
    assert python_rows(table.select([])) == 2 * [{}]
