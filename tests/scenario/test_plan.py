"""Rows of flags become deployments and scenarios: identities, and many scenarios in one call."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelsight as ks
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flags import ALIASES
from kernelsight.scenario.scenario_rows import deployment_row, normalise, scenario_row
from tests.asked import refusals, summaries

ROW = {"model": "qwen3-0.6b", "gpu": "l4", "request_rate": 20.0, "num_prompts": 6, "input_len": 64, "output_len": 4}
CHANGES = {
    "tensor_parallel_size": 2,
    "request_rate": 21.0,
    "num_prompts": 7,
    "input_len": 65,
    "output_len": 5,
    "seed": 1,
    "range_ratio": 0.5,
    "max_concurrency": 2,
    "gpu": "h100_sxm",
    "max_num_seqs": 8,
    "enable_chunked_prefill": False,
}


def scenario_id(flags: dict[str, object]) -> str:
    """Return the identity of a row of flags."""
    row = normalise(flags)
    return scenario_row(row, deployment_row(row))["scenario_id"]


@given(st.permutations(sorted(ROW)))
def test_the_order_of_flags_does_not_matter(names: list[str]) -> None:
    assert scenario_id({name: ROW[name] for name in names}) == scenario_id(ROW)


def test_spellings_of_one_scenario_have_one_identity() -> None:
    same = [
        ROW | {"request_rate": 20, "num_prompts": 6.0},
        ROW | {"tensor_parallel_size": 1, "seed": 0, "range_ratio": 1},
        {
            ("isl" if name == "input_len" else "osl" if name == "output_len" else name): value
            for name, value in ROW.items()
        }
        | {"tp": 1},
        ROW | {"max_concurrency": None, "dtype": "auto"},
    ]
    assert {scenario_id(row) for row in same} == {scenario_id(ROW)}


def test_every_flag_is_part_of_the_identity() -> None:
    names = [scenario_id(ROW | {flag: value}) for flag, value in CHANGES.items()]
    assert len({scenario_id(ROW), *names}) == len(CHANGES) + 1


def test_loads_share_their_deployment() -> None:
    rows = [normalise(ROW | {"request_rate": rate}) for rate in (1.0, 2.0)]
    assert len({deployment_row(row)["deployment_id"] for row in rows}) == 1


def test_one_call_of_many_equals_each_alone(session: ks.Session) -> None:
    grid = [
        ROW | {"gpu": "h100_sxm", "tp": 2},
        ROW | {"request_rate": None, "max_concurrency": 2},
        ROW | {"seed": 5},
    ]
    together = summaries(session, grid)
    for row, found in zip(grid, together, strict=True):
        [alone] = summaries(session, [row])
        assert {name: value for name, value in found.items() if name in alone} | {"grid_row": 1} == alone
        assert all(found.get(ALIASES.get(name, name)) == value for name, value in row.items())


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1024},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "torch_dtype": "bfloat16"},
}


def test_two_models_of_one_name_are_refused_in_any_order(session: ks.Session, tmp_path: Path) -> None:
    def config(place: str, **changes: int) -> str:
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(CONFIG | changes))
        return str(file)

    tiny, wider = config("tiny/config.json"), config("tiny/wider.json", intermediate_size=1024)
    elsewhere, namesake = config("other/tiny/config.json"), config("qwen3-0.6b/config.json")
    like = {"model": "acme", "model_like": "qwen3-0.6b"}
    for first, second in (
        ({"model": tiny}, {"model": wider}),
        ({"model": namesake}, {"model": "qwen3-0.6b"}),
        (like, like | {"model_like": "llama-3.2-1b"}),
    ):
        for pair in ((first, second), (second, first)):
            rows = [ROW | changes | {"seed": seed} for seed, changes in enumerate(pair)]
            with pytest.raises(InvalidInput, match=r"row 2 of the grid: two different models are named '[\w.-]+': "):
                session.what_if(rows)
    # the same content twice is one model
    same = session.what_if([ROW | {"model": tiny}, ROW | {"model": elsewhere, "seed": 1}])
    assert set(same.summary["model"].to_pylist()) == {"tiny"}


def test_policies_of_the_engine_are_flags_of_the_deployment(session: ks.Session) -> None:
    policies = [
        {"scheduling": "static"},
        {"capacity_policy": "guaranteed_no_evict"},
        {"capacity_policy": "new_token_ratio", "schedule_conservativeness": 0.3},
        {"batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.5},
        {"scheduler_recv_interval": 10},
        {"preemption_policy": "fewest_generated"},
        {"batch_wait_timeout_ms": 50.0},
        {"long_prefill_token_threshold": 32, "max_num_partial_prefills": 2, "max_long_partial_prefills": 1},
        {"scheduling_policy": "priority", "num_priorities": 2, "max_num_seqs": 1},
        {"prefill_policy": "prefill_first"},
    ]
    rows = summaries(session, [ROW, *(ROW | policy for policy in policies)])
    assert len({row["scenario_id"] for row in rows}) == 1 + len(policies)
    ttft_ms = [row["ttft_mean_ms"] for row in rows]
    # a batch that ends before the next, prompts that wait, requests that are not looked for: later first tokens
    assert ttft_ms[1] > ttft_ms[0] and ttft_ms[4] > ttft_ms[0] and ttft_ms[5] > ttft_ms[0]
    # memory is ample: nothing is reserved in vain
    assert ttft_ms[2] == ttft_ms[3] == ttft_ms[0]
    # decodes wait for prompts that have steps of their own
    assert rows[-1]["tpot_mean_ms"] > rows[0]["tpot_mean_ms"]


def test_a_grid_may_be_an_arrow_table(session: ks.Session) -> None:
    found = session.what_if(pa.Table.from_pylist([ROW]))
    assert found.summary.equals(session.what_if([ROW]).summary)
    assert found.summary.equals(session.what_if({name: [value] for name, value in ROW.items()}).summary)


def test_the_session_stays_as_it_was(session: ks.Session) -> None:
    before = session.available()
    session.what_if([ROW])
    assert session.available() == before


def test_another_table_has_its_own_grain(session: ks.Session) -> None:
    found = session.what_if([ROW, ROW | {"seed": 1}])
    metrics = found.table("request_metrics")
    assert metrics.num_rows == 12
    [one] = found.sql("select scenario_id from sweep where seed = 1").fetchall()
    alone = found.table("request_metrics", scenario=one[0])
    assert alone.equals(metrics.filter(pc.equal(metrics["scenario_id"], one[0])).combine_chunks())


def test_a_scenario_that_does_not_fit_is_a_row_with_its_status(session: ks.Session) -> None:
    big, small = summaries(session, [ROW | {"model": "qwen3-235b-a22b"}, ROW])
    assert (
        big["status"].startswith("qwen3-235b-a22b does not fit on l4 with tensor-parallel size 1: ")
        and big["completed"] == 0
    )
    assert (small["status"], small["completed"]) == ("served", 6)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    refusals("scenario/test_plan::test_rows_that_are_refused"),
)
def test_rows_that_are_refused(change: dict[str, object], error: type, words: str, session: ks.Session) -> None:
    with pytest.raises(error) as refused:
        session.what_if([ROW | change])
    assert words in str(refused.value)


@pytest.mark.parametrize("grid", [[], [1], "flags", None])
def test_what_is_no_grid_is_refused(grid: object, session: ks.Session) -> None:
    with pytest.raises(
        InvalidInput, match="a grid is a dict of axes, a list of dicts or an Arrow table with one row of flags or more"
    ):
        session.what_if(grid)
