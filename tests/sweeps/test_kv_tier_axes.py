"""KV tiers as an axis of grids and sizings: what more memory behind the GPU's cache saves."""

from __future__ import annotations

import json

import pytest

from kernelsight.session import connect
from tests.cli.conftest import run_command

# conversations whose prompts fit the cache of the GPU one by one, and not together
FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "kv_cache_tokens": 16384, "max_model_len": 8192}
LOAD = {"num_prompts": 48, "input_len": 1200, "output_len": 16, "num_turns": 4, "think_time_s": 1.0}
TIERS = ["none", "host:512MiB", "host:8GiB"]


def test_more_room_behind_the_cache_finds_more_and_answers_sooner() -> None:
    with connect() as session:
        found = session.what_if({**FLAGS, **LOAD, "max_concurrency": 12, "kv_tier": [None, *TIERS]})
        names = ["kv_tier", "prefix_cache_hit_rate", "device_hit_rate", "ttft_mean_ms", "energy_per_request_j"]
        rows = found.sql(f"select {', '.join(names)} from scenario_summary").to_arrow_table().to_pylist()
        moved = found.sql("select sum(read_bytes) as bytes from kv_tier_usage").to_arrow_table().to_pylist()
    # unset and none are one scenario
    assert [row["kv_tier"] for row in rows] == [None, *TIERS[1:]]
    for name, sign in (("prefix_cache_hit_rate", 1), ("ttft_mean_ms", -1), ("energy_per_request_j", -1)):
        values = [sign * row[name] for row in rows]
        assert values == sorted(values) and values[0] < values[-1], name
    assert rows[0]["device_hit_rate"] == rows[0]["prefix_cache_hit_rate"] and moved[0]["bytes"] > 0


def test_a_sweep_takes_tiers_in_its_grid(tmp_path) -> None:
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps({**FLAGS, **LOAD, "request_rate": 2, "kv_tier": ["none", "host:8GiB+disk:1TiB"]}))
    answer = json.loads(run_command("sweep", grid, "--format", "json").out)
    assert answer["scenarios"] == 2
    assert [row["kv_tier"] for row in answer["rows"]] == [None, "host:8GiB+disk:1TiB"]


def test_a_sizing_searches_tiers() -> None:
    with connect() as session:
        found = session.size(
            **{name: value for name, value in FLAGS.items() if name != "gpu"}, **{**LOAD, "num_prompts": 200},
            gpus=["l4"], users=24, slo={"ttft_p90": 60_000}, max_gpus=1, tune=False, search={"kv_tier": TIERS[::2]},
        )  # fmt: skip
    by_tier = {row.get("kv_tier"): row for row in found.rows}
    assert set(by_tier) == {None, "host:8GiB"}
    assert by_tier["host:8GiB"]["users"] >= by_tier[None]["users"]


@pytest.mark.parametrize("stated", ["host", "tape:1TiB", "host:lots"])
def test_tiers_that_cannot_be_read_are_refused(stated: str) -> None:
    assert "kv_tier" in run_command("simulate", "--model", "qwen3-0.6b", "--gpu", "l4", "--kv-tier", stated).err
