"""Launch lines in grids, and what a table shows of flags that a row leaves unset."""

from __future__ import annotations

import json

LOAD = {"gpu": "l4", "max_concurrency": 2, "num_prompts": 4, "input_len": 64, "output_len": 4}
LINE = "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 4"


def test_a_launch_line_is_the_base_of_a_grid(command, tmp_path):
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(LOAD | {"max_num_seqs": [2, None]}))
    answer = json.loads(command("sweep", grid, "--launch", LINE, "--format", "json")[1])
    assert sorted(row["max_num_seqs"] for row in answer["rows"]) == [2, 4]
    assert {row["model"] for row in answer["rows"]} == {"qwen3-0.6b"}


def test_launch_lines_are_an_axis(session):
    lines = [LINE, "python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B --disable-radix-cache"]
    found = session.what_if(LOAD | {"launch": lines}).summary
    assert sorted(found["engine"].to_pylist()) == ["sglang", "vllm"]
    assert "launch" not in found.column_names


def test_a_flag_that_a_row_leaves_unset_is_never_blank(command, tmp_path):
    grid = tmp_path / "grid.json"
    axes = {"router": ["round_robin", "least_loaded"], "tensor_parallel_size": [None, 2], "block_size": [None, 32]}
    grid.write_text(json.dumps(LOAD | {"model": "qwen3-0.6b"} | axes))
    rows = json.loads(command("sweep", grid, "--format", "json")[1])["rows"]
    assert {(row["router"], row["tensor_parallel_size"]) for row in rows} == {
        (router, size) for router in axes["router"] for size in (1, 2)
    }
    page = command("sweep", grid)[1]
    assert "round_robin" in page and "default" in page
