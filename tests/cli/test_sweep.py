"""The page of a sweep: one scenario needs no front, numbers have no powers of ten, an infinite rate stands last."""

from __future__ import annotations

import json

GRID = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 64, "input_len": 2000, "output_len": 8}


def test_intervals_have_no_powers_of_ten_and_an_infinite_rate_stands_last(command, tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps(GRID | {"request_rate": ["inf", 1, 20], "max_concurrency": 64}))
    out = command("sweep", tmp_path / "grid.json", "--intervals").out
    assert "e+0" not in out and "Pareto front" in out
    table = out.split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in table[2:]] == ["1", "20", "inf"]
    (tmp_path / "grid.json").write_text(json.dumps(GRID | {"max_concurrency": 2}))
    alone = command("sweep", tmp_path / "grid.json").out
    assert alone.startswith("1 scenario, 1 served, 0 cannot run\n") and "Pareto front" not in alone
    assert any(float(line.split("(")[1].split("-")[0].replace(",", "")) >= 1000 for line in table[2:])
