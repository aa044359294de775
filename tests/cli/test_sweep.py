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


def test_flags_of_several_values_are_a_grid_and_its_front_is_drawn(command):
    flags = "--model qwen3-0.6b --gpu l4,h100 --max-concurrency 1,8 --num-prompts 16 --isl 200 --osl 8".split()
    axes = {"model": "qwen3-0.6b", "gpu": ["l4", "h100"], "max_concurrency": [1, 8], "num_prompts": 16}
    out = command("sweep", *flags).out
    assert out == command("sweep", json.dumps(axes | {"input_len": 200, "output_len": 8})).out
    picture = out.split("tok/s/GPU; *: on the front\n")[1].split("\n\n")[0]
    assert "*" in picture and max(map(len, picture.splitlines())) <= 100
