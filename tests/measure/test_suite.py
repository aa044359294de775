"""Suites: those that ship can be read, and what of a stated one cannot be used is told in one sentence."""

from __future__ import annotations

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.measure import suite as suites
from kernelsight.measure.cuda.device import _STREAMING
from kernelsight.measure.suite import FAMILIES, read_suite, suite_of, suites_folder

GEMM = {"family": "gemm", "axes": {"m": [1, 2], "n": 64, "k": 64}}
DECODE = {"family": "decode_attention", "axes": {"batch": 1, "context": 64, "heads": 8, "kv_heads": 8, "head_dim": 64}}


@pytest.mark.parametrize("name", sorted(path.stem for path in suites_folder().glob("*.json")))
def test_suites_that_ship(name: str) -> None:
    suite = read_suite(name)
    assert suite.name == name
    assert len({point.key for point in suite.points}) == len(suite.points) > 100
    named = {point.family for point in suite.points}
    assert named == set(FAMILIES) if name == "paper" else named >= set(_STREAMING) | {"gemm", "decode_attention"}


def test_axes_are_multiplied_and_points_are_listed() -> None:
    stated = {"family": "gemm", "cache": "cold", "axes": {"m": [1, 2]}, "points": [{"n": 8, "k": 16}, {"n": 4, "k": 4}]}
    suite = suite_of({"entries": [stated, stated]}, "some/mine.json")
    assert suite.name == "mine"
    assert [point.sizes for point in suite.points] == [
        {"m": m, "n": n, "k": k} for n, k in ((8, 16), (4, 4)) for m in (1, 2)
    ]
    assert suite.digest != suite_of({"entries": [{**stated, "cache": "warm"}]}, "mine.json").digest


def test_sizes_that_may_be_left_out_are_0() -> None:
    """A window of 0 tokens is none."""
    axes = [DECODE["axes"] | more for more in ({"window": [0, 128]}, {"batch": 2})]
    points = suite_of({"entries": [{**DECODE, "axes": one} for one in axes]}, "mine.json").points
    assert {(point.sizes["batch"], point.sizes["window"]) for point in points} == {(1, 0), (1, 128), (2, 0)}


def test_launches_come_first_and_then_a_point_of_each_entry() -> None:
    entries = [GEMM | {"cache": "cold", "axes": {"m": [1, 2, 3, 4], "n": 64, "k": 64}}]
    entries += [{"family": "embedding", "axes": {"rows": 1, "columns": 64}}, {"family": "launch"}]
    names = [(point.family, point.sizes.get("m")) for point in suite_of({"entries": entries}, "mine.json").points]
    products = [("gemm", m) for m in (1, 2, 3, 4)]
    assert names == [("launch", None), products[0], ("embedding", None), *products[1:]]


def test_a_suite_has_a_most_of_points_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten: of all entries together, and in both cache states."""
    monkeypatch.setattr(suites, "MOST_POINTS", 10)
    two, five, six = (GEMM | {"axes": {"m": list(range(1, m + 1)), "n": 64, "k": 64}} for m in (2, 5, 6))
    assert len(suite_of({"entries": [five]}, "mine.json").points) == 10
    for entries, where in (([six], "entry 1"), ([two, two, two], "entry 3")):
        with pytest.raises(InvalidInput, match=f"{where} makes more than 10 points of the suite"):
            suite_of({"entries": entries}, "mine.json")


def test_any_part_of_the_time_measures_a_like_part_of_every_entry() -> None:
    entries = [GEMM | {"axes": {"m": list(range(1, 41)), "n": 64, "k": 64}}]
    entries += [{"family": "norm", "axes": {"rows": list(range(1, 11)), "columns": 64}}]
    points = suite_of({"entries": entries}, "mine.json").points
    for part in (20, 50, 80):
        norms = sum(point.family == "norm" for point in points[:part])
        assert abs(norms - part / 5) <= 1
    # in the order of its entry, which a plan ranks by gain
    rows = [point.sizes["rows"] for point in points if point.family == "norm" and point.cache == "cold"]
    assert rows == sorted(rows)


def test_a_rule_counts_in_whole_numbers() -> None:
    """A device replays so many times: 8.0 of them would fail."""
    rule = suite_of(
        {"entries": [GEMM], "rule": {"block": 8, "most_samples": 64.0, "most_seconds": 1}}, "mine.json"
    ).rule
    assert [type(value) for value in rule] == [float, int, int, float, int, int, float]
    assert (rule.block, rule.most_samples, rule.most_seconds) == (8, 64, 1.0)
