"""KV tiers as an axis of grids and sizings: what more memory behind the GPU's cache saves."""

from __future__ import annotations

import json

from kernelsight.scenario.plan import plan_rows
from kernelsight.session import connect
from kernelsight.sizing.candidates import rows_of
from tests.cli.conftest import run_command

# conversations whose prompts fit the cache of the GPU one by one, and not together
FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "kv_cache_tokens": 16384, "max_model_len": 8192}
LOAD = {"num_prompts": 48, "input_len": 1200, "output_len": 16, "num_turns": 4, "think_time_s": 1.0}
TIERS = ["none", "host:512MiB", "host:8GiB"]


def test_more_room_behind_the_cache_finds_more_and_answers_sooner() -> None:
    with connect() as session:
        found = session.what_if({**FLAGS, **LOAD, "max_concurrency": 12, "kv_tier": TIERS})
        names = ["kv_tier", "prefix_cache_hit_rate", "device_hit_rate", "ttft_mean_ms", "energy_per_request_j"]
        rows = (
            found.sql(f"select {', '.join(names)} from scenario_summary join deployments using (deployment_id)")
            .to_arrow_table()
            .to_pylist()
        )
        moved = found.sql("select sum(read_bytes) as bytes from kv_tier_usage").to_arrow_table().to_pylist()
    rows.sort(key=lambda row: [None, *TIERS[1:]].index(row["kv_tier"]))
    assert len(rows) == 3
    for name, sign in (("prefix_cache_hit_rate", 1), ("ttft_mean_ms", -1)):
        values = [sign * row[name] for row in rows]
        assert values == sorted(values) and values[0] < values[-1], name
    # a small tier costs transfers; one that holds all saves prompts that are computed again
    assert rows[-1]["energy_per_request_j"] < rows[0]["energy_per_request_j"]
    assert rows[0]["device_hit_rate"] == rows[0]["prefix_cache_hit_rate"] and moved[0]["bytes"] > 0


def test_a_sweep_takes_tiers_in_its_grid(tmp_path) -> None:
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps({**FLAGS, **LOAD, "request_rate": 2, "kv_tier": ["none", "host:8GiB+disk:1TiB"]}))
    answer = json.loads(run_command("sweep", grid, "--format", "json").out)
    assert answer["scenarios"] == 2
    assert [row["kv_tier"] for row in answer["rows"]] == [None, "host:8GiB+disk:1TiB"]


def test_a_sizing_searches_tiers() -> None:
    stated = {name: value for name, value in FLAGS.items() if name != "gpu"}
    with connect() as session:
        rows = rows_of(session, stated, ["l4"], 1, {"kv_tier": TIERS})
        plan = plan_rows(session, [{**LOAD, "request_rate": 1.0, **row} for row in rows], on_fault="raise", origin="")
    assert [row.get("kv_tier") for row in rows] == [None, *TIERS[1:]]
    assert [row.get("kv_tier") for row in plan.deployments.values()] == [None, *TIERS[1:]]
