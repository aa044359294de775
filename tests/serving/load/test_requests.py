"""draw_requests: rates, burstiness, lengths, and that a scenario draws the same alone or among others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelsight.catalog.tables import contracts
from kernelsight.errors import InvalidInput
from kernelsight.serving.load import requests as load
from kernelsight.serving.load.recorded_loads import read_load, read_trace
from kernelsight.serving.load.requests import draw_loads
from tests.asked import refusals
from tests.calls_made import calls_made

CONTRACT = contracts()["load_requests"].columns
TYPES = {
    **{"trace": pa.string(), "request_rate": pa.float64(), "num_prompts": pa.int64()},
    **{"input_len": pa.int64(), "output_len": pa.int64()},
}
SYNTHETIC = {"num_prompts": 100, "input_len": 1000, "output_len": 100, "range_ratio": 1.0}


def draw_requests(loads: pa.Table) -> pa.Table:
    return draw_loads(loads).load_requests


def scenarios(*rows: dict) -> pa.Table:
    """Lay scenarios out as a table; what a row leaves out is null, or the default of the command line."""
    defaults = {"trace": None, "request_rate": None, "burstiness": 1.0, "num_prompts": None}
    defaults |= {"input_len": None, "output_len": None, "range_ratio": 1.0, "seed": 0}
    whole = [{"load_id": f"s{i}"} | defaults | row for i, row in enumerate(rows)]
    names = dict.fromkeys(name for row in whole for name in row)
    return pa.table({name: pa.array([r.get(name) for r in whole], TYPES.get(name)) for name in names})


def arrivals(**row) -> np.ndarray:
    return draw_requests(scenarios(SYNTHETIC | row))["arrival_s"].to_numpy()


@pytest.fixture
def trace(tmp_path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{i + 10},{i + 1}\n" for i in range(5)))
    return str(path)


def test_columns_are_those_of_the_contract(trace):
    spelled = {"double": "float64", "list<item: int64>": "list<int64>"}
    for rows in ((), (SYNTHETIC,), ({"trace": trace},)):
        table = draw_requests(scenarios(SYNTHETIC, *rows).slice(1))
        assert [(f.name, spelled.get(str(f.type), str(f.type))) for f in table.schema] == [
            (c.name, c.type) for c in CONTRACT
        ]
        assert all(table[c.name].null_count == 0 for c in CONTRACT if not c.nullable)


def test_without_a_rate_all_arrive_at_once():
    assert (arrivals(max_concurrency=4) == 0).all()


@pytest.mark.parametrize("burstiness", [0.05, 0.5, 1.0, 4.0, 1e308])
def test_the_offered_rate_is_the_stated_one_whatever_the_seed(burstiness):
    for seed in range(5):
        times = arrivals(request_rate=8.0, num_prompts=4000, burstiness=burstiness, seed=seed)
        assert times[0] == 0 and (np.diff(times) >= 0).all() and np.isfinite(times).all()
        # n gaps of mean 1/8 s, less the one before the first arrival; 16 mean gaps are ample for a single one
        assert 0 <= 4000 / 8 - times[-1] <= 16 / 8 / min(burstiness, 1)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_spread_of_the_gamma_distribution(burstiness):
    gaps = np.diff(arrivals(request_rate=2.0, num_prompts=40_000, burstiness=burstiness))
    assert gaps.mean() == pytest.approx(0.5, rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    if burstiness == 1:  # Poisson: a gap exceeds the mean with probability 1/e
        assert (gaps > gaps.mean()).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_a_vanishing_shape_puts_all_requests_at_the_first_arrival():
    assert (arrivals(request_rate=1.0, burstiness=1e-300) == 0).all()


def test_another_rate_stretches_the_arrivals_and_leaves_the_lengths():
    pair = draw_requests(
        scenarios(*({**SYNTHETIC, "range_ratio": 0.5, "request_rate": r} for r in (1.0, 4.0)))
    ).to_pylist()
    slow, fast = pair[:100], pair[100:]
    for s, f in zip(slow, fast, strict=True):
        assert s["prompt_tokens"] == f["prompt_tokens"] and s["output_tokens"] == f["output_tokens"]
        assert s["arrival_s"] == pytest.approx(4 * f["arrival_s"], rel=1e-12)


def test_prompt_and_output_lengths_are_drawn_apart():
    row = {"num_prompts": 4000, "input_len": 1000, "output_len": 1000, "range_ratio": 0.001}
    table = draw_requests(scenarios(row))
    assert abs(np.corrcoef(table["prompt_tokens"], table["output_tokens"])[0, 1]) < 0.1
    longer = draw_requests(scenarios(row | {"input_len": 5000}))
    assert longer["output_tokens"].equals(table["output_tokens"])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20_000), st.floats(1e-6, 1), st.integers(0, 2**63 - 1))
def test_lengths_keep_their_bounds(nominal, ratio, seed):
    row = {"num_prompts": 50, "input_len": nominal, "output_len": nominal, "range_ratio": ratio, "seed": seed}
    table = draw_requests(scenarios(row))
    for lengths in (table["prompt_tokens"].to_numpy(), table["output_tokens"].to_numpy()):
        assert lengths.max() <= nominal and lengths.min() >= max(1, ratio * nominal - 1e-6)


def test_lengths_reach_both_bounds_evenly():
    row = {"num_prompts": 6000, "input_len": 10, "output_len": 100, "range_ratio": 0.07}
    table = draw_requests(scenarios(row))
    assert sorted(set(table["output_tokens"].to_pylist())) == list(range(7, 101))
    counts = np.bincount(table["prompt_tokens"].to_numpy())[1:]
    assert len(counts) == 10 and counts.min() > 500 and counts.max() < 700
    assert set(draw_requests(scenarios(row | {"range_ratio": 1.0}))["output_tokens"].to_pylist()) == {100}


worlds = st.lists(
    st.fixed_dictionaries(
        {
            "num_prompts": st.integers(1, 30),
            "input_len": st.integers(1, 4000),
            "output_len": st.integers(1, 400),
            "range_ratio": st.floats(0.01, 1),
            "request_rate": st.none() | st.floats(0.01, 1000),
            "burstiness": st.floats(0.1, 10),
            "seed": st.integers(0, 3),
            "prefix_len": st.sampled_from([None, 0, 7, 40]),
            "num_turns": st.none() | st.integers(1, 4),
        }
    ).map(lambda row: row | {"trace": None})
    | st.fixed_dictionaries(
        {
            "trace": st.none(),
            "num_prompts": st.integers(1, 30),
            "input_len": st.just(100),
            "output_len": st.just(10),
            "input_len_cv": st.floats(0.1, 3),
            "max_concurrency": st.just(4),
            "num_warmups": st.integers(0, 3),
            "prefix_len": st.sampled_from([None, 40]),
        }
    )
    | st.fixed_dictionaries({"trace": st.just("replayed"), "num_prompts": st.none() | st.integers(1, 9)}),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(worlds, st.randoms(use_true_random=False))
def test_inv_7_alone_equals_among_others_in_any_order(tmp_path_factory, rows, shuffler):
    path = tmp_path_factory.getbasetemp() / "replayed.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{i + 10},{i + 1}\n" for i in range(5)))
    rows = [{"load_id": f"s{i}"} | r | ({"trace": str(path)} if r["trace"] else {}) for i, r in enumerate(rows)]
    alone = {r["load_id"]: draw_requests(scenarios(r)) for r in rows}
    shuffler.shuffle(rows)
    together = draw_requests(scenarios(*rows))
    assert together.equals(pa.concat_tables(alone[r["load_id"]] for r in rows))
    for row in rows:
        mine = alone[row["load_id"]]
        assert mine["request_id"].to_pylist() == list(range(mine.num_rows))
        asked = min(row["num_prompts"] or 5, 5) if row["trace"] else row["num_prompts"]
        assert mine.num_rows == asked + (row.get("num_warmups") or 0)


def test_a_seed_draws_the_same_again_and_another_draws_otherwise():
    row = SYNTHETIC | {"request_rate": 1.0, "range_ratio": 0.5}
    assert draw_requests(scenarios(row)).equals(draw_requests(scenarios(row)))
    other = draw_requests(scenarios(row | {"seed": 1}))
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert not other[name].equals(draw_requests(scenarios(row))[name])


def test_a_trace_is_read_once_and_shared(trace, monkeypatch):
    read = []
    monkeypatch.setattr(load, "read_load", lambda path, **how: read.append(path) or read_load(path, **how))
    table = draw_requests(scenarios({"trace": trace}, {"trace": trace, "num_prompts": 2}, {"trace": trace}))
    assert read == [trace]
    assert table["load_id"].to_pylist() == ["s0"] * 5 + ["s1"] * 2 + ["s2"] * 5
    expected = read_trace(trace).slice(0, 2)
    assert table.slice(5, 2).select(expected.column_names).equals(expected)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {
                "num_prompts": 4,
                "input_len": 1000,
                "output_len": 100,
                "range_ratio": 0.5,
                "request_rate": 2.0,
                "seed": 7,
            },
            [
                (0.0, 652, 84),
                (0.5818615142971869, 899, 74),
                (0.6943050754131719, 602, 70),
                (1.5920827339284247, 526, 53),
            ],
        ),
        (
            {"num_prompts": 4, "input_len": 64, "output_len": 8, "range_ratio": 0.25, "request_rate": 10.0}
            | {"burstiness": 0.5},
            [
                (0.0, 55, 6),
                (0.07806021640595567, 62, 6),
                (0.08982433231357217, 16, 4),
                (0.18006673918089072, 31, 3),
            ],
        ),
        (
            {"num_prompts": 3, "input_len": 300, "output_len": 30, "range_ratio": 0.1, "seed": 3},
            [(0.0, 201, 22), (0.0, 176, 5), (0.0, 65, 7)],
        ),
    ],
)
def test_what_seeds_draw_stays(row, expected):
    table = draw_requests(scenarios(row)).to_pylist()
    assert [(r["arrival_s"], r["prompt_tokens"], r["output_tokens"]) for r in table] == expected


WARM = SYNTHETIC | {"max_concurrency": 4, "num_warmups": 3, "range_ratio": 0.1}


def test_warmups_are_copies_of_the_first_request_ahead_of_the_others(trace):
    plain, warm = draw_requests(scenarios(SYNTHETIC | {"range_ratio": 0.1})), draw_requests(scenarios(WARM))
    assert warm["warmup"].to_pylist() == [True] * 3 + [False] * 100
    assert warm["request_id"].to_pylist() == list(range(103))
    load = ["arrival_s", "prompt_tokens", "output_tokens", "hash_ids"]
    assert warm.slice(3).select(load).to_pylist() == plain.select(load).to_pylist()
    for i in range(3):
        assert warm.slice(i, 1).select(load).to_pylist() == plain.slice(0, 1).select(load).to_pylist()


def test_warmups_of_one_scenario_leave_its_neighbours_alone():
    rows = [SYNTHETIC | {"num_prompts": 5}, WARM | {"num_prompts": 4}, SYNTHETIC | {"num_prompts": 2}]
    table = draw_requests(scenarios(*rows))
    assert table["load_id"].to_pylist() == ["s0"] * 5 + ["s1"] * 7 + ["s2"] * 2
    assert table["warmup"].to_pylist() == [False] * 5 + [True] * 3 + [False] * 6
    assert table.slice(5, 7).equals(draw_requests(scenarios(*rows).slice(1, 1)))


def test_lengths_of_a_trace_are_drawn_in_pairs(trace):
    row = {"num_prompts": 2000, "lengths_from": trace, "request_rate": 5.0}
    table = draw_requests(scenarios(row))
    pairs = list(zip(table["prompt_tokens"].to_pylist(), table["output_tokens"].to_pylist(), strict=True))
    assert set(pairs) == {(i + 10, i + 1) for i in range(5)}
    assert all(300 < pairs.count(pair) < 500 for pair in set(pairs))
    # its arrivals are not used
    assert table["arrival_s"].equals(draw_requests(scenarios(SYNTHETIC | row | {"lengths_from": None}))["arrival_s"])


def test_a_prefix_comes_before_the_lengths_and_changes_nothing_else():
    row = SYNTHETIC | {"range_ratio": 0.5, "request_rate": 3.0}
    plain, shared = (
        draw_requests(scenarios(row)),
        draw_requests(scenarios(row | {"prefix_len": 100, "num_prefixes": 4})),
    )
    assert (shared["prompt_tokens"].to_numpy() == plain["prompt_tokens"].to_numpy() + 100).all()
    assert shared.select(["arrival_s", "output_tokens"]).equals(plain.select(["arrival_s", "output_tokens"]))
    assert plain["hash_ids"].null_count == 100 and shared["hash_ids"].null_count == 0
    assert set(shared["hash_block_tokens"].to_pylist()) == {96}
    firsts = [ids[0] for ids in shared["hash_ids"].to_pylist()]
    assert {firsts.count(prefix) for prefix in set(firsts)} == {25} and len(set(firsts)) == 4


@pytest.mark.parametrize(
    ("row", "sentence"),
    refusals("serving/load/test_requests::test_unclear_loads_are_refused"),
)
def test_unclear_loads_are_refused(row, sentence):
    with pytest.raises(InvalidInput) as caught:
        draw_requests(scenarios(SYNTHETIC, row))
    assert str(caught.value) == sentence


def test_a_thousand_scenarios_are_drawn_in_bulk():
    rows = [SYNTHETIC | {"num_prompts": 512, "request_rate": 1.0 + i, "range_ratio": 0.5} for i in range(1000)]
    table = scenarios(*rows)
    drawn, calls = calls_made(lambda: draw_requests(table))
    assert drawn.num_rows == 512_000
    assert calls < 512_000 / 2


def test_priorities_are_drawn_in_equal_parts_and_leave_the_rest_as_it_is():
    row = SYNTHETIC | {"num_prompts": 9}
    plain, ranked = draw_requests(scenarios(row)), draw_requests(scenarios(row | {"num_priorities": 3}))
    assert plain["priority"].null_count == 9
    assert sorted(ranked["priority"].to_pylist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert ranked.drop_columns(["priority"]).equals(plain.drop_columns(["priority"]))


def test_adapters_are_drawn_by_session_and_leave_the_rest_as_it_is():
    row = SYNTHETIC | {"num_prompts": 4000, "request_rate": 2.0}
    plain, named = draw_requests(scenarios(row)), draw_requests(scenarios(row | {"num_adapters": 4}))
    assert plain["adapter"].null_count == 4000
    assert named.drop_columns(["adapter"]).equals(plain.drop_columns(["adapter"]))
    # equally often: 1,000 of each, with a deviation of 27
    assert np.bincount(named["adapter"].to_numpy()) == pytest.approx(np.full(4, 1000), abs=140)
    # in proportion to 1, 1/4, 1/9, 1/16
    steep = draw_requests(scenarios(row | {"num_adapters": 4, "adapter_zipf": 2.0}))["adapter"].to_numpy()
    assert np.bincount(steep) == pytest.approx(4000 / (1 + 1 / 4 + 1 / 9 + 1 / 16) / np.arange(1, 5) ** 2, abs=140)
    talks = scenarios(row | {"num_adapters": 900, "num_turns": 4, "think_time_s": 1.0})
    drawn = draw_loads(talks)
    adapter, waits = drawn.load_requests["adapter"].to_numpy(), drawn.load_dependencies
    assert waits.num_rows == 3000
    assert (adapter[waits["request_id"].to_numpy()] == adapter[waits["after"].to_numpy()]).all()


def test_priorities_do_not_follow_the_order_of_arrival():
    row = SYNTHETIC | {"request_rate": 2.0, "num_prompts": 300, "num_priorities": 3}
    ranks = [draw_requests(scenarios(row | {"seed": seed}))["priority"].to_numpy() for seed in range(2)]
    assert (ranks[0] != ranks[1]).any()
    for found in ranks:
        # each third of the load has about as many of each priority: 33 of 100, with a deviation below 5
        thirds = found.reshape(3, 100)
        assert all(15 < (part == level).sum() < 55 for part in thirds for level in range(3))
        assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.25


@pytest.mark.parametrize("spread", ["input_len_cv", "output_len_cv"])
def test_another_spread_of_one_length_leaves_the_other(spread):
    """Prompts and outputs have a seed each: a what-if over one of them compares the same requests."""
    row = SYNTHETIC | {"request_rate": 2.0, "input_len_cv": 0.5, "output_len_cv": 0.5}
    kept, changed = (
        ("output_tokens", "prompt_tokens") if spread == "input_len_cv" else ("prompt_tokens", "output_tokens")
    )
    first, other = (draw_requests(scenarios(row | {spread: cv})) for cv in (0.5, None))
    assert first[kept].equals(other[kept]) and not first[changed].equals(other[changed])
