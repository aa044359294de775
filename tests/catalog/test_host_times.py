"""Host times that ship: each constant has an interval that holds it, and says where it is from."""

from __future__ import annotations

import re

import pytest

from kernelsight.catalog.tables import facts

ROWS = facts("host_overheads").to_pylist()
LIST = re.compile(r"intervals \([^)]*\): ([^;]*); ")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['engine']}-{row['from_version']}")
def test_every_time_has_an_interval_and_a_source(row: dict) -> None:
    times = {name: value for name, value in row.items() if name.endswith("_us") and value}
    listed = LIST.match(row["source"])
    intervals = dict(re.findall(r"(\w+_us) (\S+ to \S+)(?:, |$)", listed[1]))
    assert set(intervals) == set(times)
    for name, interval in intervals.items():
        low, high = map(float, interval.split(" to "))
        assert low <= times[name] <= high, name
    reasons = row["source"][listed.end() :]
    if row["from_version"] != "0" or row["engine"] != "vllm":  # whose other figures are those of later versions
        assert [name for name in times if name not in reasons] == []


def test_classes_of_cpus_have_an_interval_and_a_source() -> None:
    for row in facts("cpus").to_pylist():
        assert row["speed_low"] < row["speed"] <= row["speed_high"] and row["source"], row


def test_vllm_before_0_8_is_the_engine_before_v1() -> None:
    exposed = {row["from_version"]: row["step_exposed_us"] for row in ROWS if row["engine"] == "vllm"}
    assert exposed["0"] > exposed["0.6"] > exposed["0.8"] == 0.0
