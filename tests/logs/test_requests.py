"""The rules that every log of requests goes through: what is excluded, dropped or noted, and how it is counted."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import conform
from kernelsight.errors import KernelSightError
from kernelsight.files.row_faults import Faults
from kernelsight.logs.files import LogFile
from kernelsight.logs.log_run import FILE_ROW, LogRun, fault_rows, kind_of_error, rules
from kernelsight.logs.requests import finish_requests, first_time
from tests.conftest import random_worlds
from tests.logs.written import DATA


def finished(*rows, **stated):
    """Return the finished requests of rows given as dicts, and their faults."""
    usual = {"prompt_tokens": 10, "output_tokens": 5, "ttft_ms": 20.0, "e2e_ms": 60.0, "arrival_s": 1.0}
    file = LogFile(DATA / "made", b"", "json", False)
    frame = pl.DataFrame([usual | row for row in rows], infer_schema_length=None)
    found = LogRun(file, "table", clock="unix", requests=frame, stated=stated)
    made = finish_requests(found)
    return made, {rule: n for rule, (n, _, _) in found.faults.counted.items() if rule != "ttft_clock_unknown"}


WARM = [{"arrival_s": 0.01, "status": "warmup"}] + [{"arrival_s": 1.0 + n} for n in range(5)]
# rows of a log, the number of rows by rule, and columns of what is left
CASES = [
    (
        [{}, {"ttft_ms": -3.0}, {"queue_ms": -1e-9}],
        {"negative_duration": 2, "no_latency": 2},
        {"e2e_ms": [60.0, None, None]},
    ),
    ([{}, {"e2e_ms": float("nan")}], {"not_finite": 1, "no_latency": 1}, {"e2e_ms": [60.0, None]}),
    ([{}, {"e2e_ms": float("inf")}], {"not_finite": 1, "no_latency": 1}, {"e2e_ms": [60.0, None]}),
    ([{}, {"e2e_ms": 1e15}], {"not_finite": 1, "no_latency": 1}, {"e2e_ms": [60.0, None]}),
    (
        [{"cached_tokens": 10}, {"cached_tokens": 11}, {"cached_tokens": -1}],
        {"cached_above_prompt": 2},
        {"cached_tokens": [10, None, None], "ttft_ms": [20.0] * 3},
    ),
    # of repeated ids the one that succeeded stays; turns of one conversation may share an id
    (
        [{"external_id": "a", "status": "error"}, {"external_id": "a", "e2e_ms": 70.0}, {"external_id": "b"}, {}],
        {"duplicate_id": 1},
        {"e2e_ms": [70.0, 60.0, 60.0]},
    ),
    ([{"external_id": "a", "turn": 0}, {"external_id": "a", "turn": 1}], {}, {"e2e_ms": [60.0, 60.0]}),
    (
        [{}, {"status": "error"}, {"status": "cancelled"}, {"status": "warmup"}],
        {"failed": 1, "cancelled": 1, "warmup": 1},
        {"e2e_ms": [60.0, None, None, 60.0]},
    ),
    ([{}, {"output_tokens": 0}], {"no_output": 1}, {"error": [None, "no output"], "status": ["ok", "error"]}),
    # a failure keeps its load where its length is known
    (
        [{}, {"status": "error"}, {"status": "error", "prompt_tokens": None}],
        {"failed_without_length": 1, "failed": 1},
        {"prompt_tokens": [10, 10]},
    ),
    ([{}, {"prompt_tokens": 0}], {"no_prompt_tokens": 1}, {"prompt_tokens": [10]}),
    (
        [{}, {"e2e_ms": None, "tpot_ms": 10.0}, {"output_tokens": 1, "e2e_ms": 20.0}],
        {},
        {"tpot_ms": [10.0, 10.0, None], "e2e_ms": [60.0, 60.0, 20.0]},
    ),
    ([{}, {"ttft_ms": 61.0}], {"order_of_times": 1}, {"tpot_ms": [10.0, None]}),
    (
        [{"arrival_s": 3.0, "sent_s": 3.5}, {"arrival_s": 1.0, "sent_s": 4.0}, {"arrival_s": 2.0}],
        {},
        {"arrival_s": [2.0, 3.0, 1.0], "sent_s": [2.0, 3.5, 4.0], "request_id": [0, 1, 2]},
    ),
]


@pytest.mark.parametrize(("rows", "counted", "columns"), CASES)
def test_what_a_rule_excludes_is_counted_and_the_rest_is_left(rows, counted, columns):
    made, faults = finished(*rows)
    assert faults == counted and {name: made[name].to_list() for name in columns} == columns


@pytest.mark.parametrize(("rate", "not_reached"), [(1.0, {}), (0.3, {"rate_not_reached": 5}), (1.03, {})])
def test_rates_are_compared_without_warmups_and_beyond_chance(rate, not_reached):
    assert finished(*WARM, requested_rate=rate)[1] == {"warmup": 1} | not_reached


def test_every_rule_says_what_happened():
    for rule, (rows, text) in rules().items():
        faults = Faults()
        faults.add(rule, 2, "x")
        faults.add(rule, 3, "y")
        [row] = fault_rows(faults, "log")
        assert (row["n"], row["example"], row["rows"]) == (5, "x", rows) and row["explanation"] == text
    assert fault_rows(Faults(), "log") == []


@pytest.mark.parametrize(
    "text, kind",
    [
        ("Traceback (most recent call last):\nasyncio.exceptions.TimeoutError", "TimeoutError"),
        ("Bad Request: {'message': 'the prompt is a secret'}", "HTTP 400"),
        ("429 Too Many Requests", "HTTP 429"),
        ("the prompt is a secret", "other"),
        (None, "other"),
    ],
)
def test_of_an_error_only_its_kind_is_kept(text, kind):
    assert kind_of_error(text) == kind


numbers = st.one_of(st.none(), st.floats(), st.floats(-10, 1000), st.integers(-5, 10**6))
counts = st.one_of(st.none(), st.integers(-5, 10**12), st.integers(0, 20))
drawn = st.fixed_dictionaries(
    {
        **dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms", "queue_ms", "server_ttft_ms"), numbers),
        **dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens", "turn", "preemptions"), counts),
        **dict.fromkeys(("arrival_s", "sent_s"), st.one_of(st.none(), st.floats(0, 1e10), st.floats())),
        "external_id": st.one_of(st.none(), st.sampled_from("abc")),
        "status": st.sampled_from(["ok", "ok", "error", "cancelled", "warmup"]),
    }
)
TYPES = {
    **dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms", "queue_ms", "server_ttft_ms", "arrival_s", "sent_s"), pl.Float64),
    **dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens", "turn", "preemptions"), pl.Int64),
    **dict.fromkeys(("external_id", "status"), pl.String),
}


@random_worlds(300, few=20)
@given(st.lists(drawn, min_size=1, max_size=8))
def test_whatever_a_reader_finds_the_contract_holds_and_no_row_is_lost(rows):
    file = LogFile(DATA / "made", b"", "json", False)
    found = LogRun(file, "table", requests=pl.DataFrame(rows, schema=TYPES, strict=False))
    try:
        made = finish_requests(found)
    except KernelSightError:
        return
    dropped = sum(n for rule, (n, _, _) in found.faults.counted.items() if rules()[rule][0] == "dropped")
    assert made.height + dropped == len(rows)
    shifted = made.drop(FILE_ROW).with_columns(
        (pl.col("arrival_s", "sent_s") - (first_time(made) or 0.0)).clip(0.0), pl.lit("log").alias("log_id")
    )
    conform(shifted.to_arrow(), contracts()["production_requests"])
