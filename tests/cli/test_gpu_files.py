"""`--gpus FILE`: hypothetical hardware is a row; what is wrong with a row is told."""

from __future__ import annotations

import json

import pytest

from kernelsight.dataflow.contract import load_contracts
from kernelsight.dataflow.locations import folder
from kernelsight.errors import KernelSightError
from kernelsight.session import connect

RATE = "memory_bandwidth_bytes_per_s"
FAST = {"gpu": "fast", "like": "h100_sxm", RATE: 6.7e12}
STEP = ("predict", "--model", "qwen3-0.6b", "--gpu", "fast", "--context-len", 100)


@pytest.fixture
def gpus(tmp_path):
    """Write a file of GPUs: objects as JSON, text or bytes as they are."""

    def write(content, ending=".json"):
        path = tmp_path / f"gpus{ending}"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_a_catalogue_gpu_that_is_overridden_is_hypothetical_and_named(gpus, command):
    path = gpus({"gpu": "h100_sxm", RATE: 6.7e12})
    words = ("predict", "--model", "qwen3-0.6b", "--gpu", "h100_sxm", "--context-len", 100, "--gpus", path)
    answer = command(*words, "--format", "json")
    assert answer.status == 0, answer.err
    assert next(row["tier"] for row in answer.json["kernels"] if row["name"] == "gate_up_proj") == "hypothetical"
    assert "gpus.json: its row h100_sxm replaces the catalogue GPU of that name" in answer.err


@pytest.mark.whole
def test_csv_json_and_a_list_say_the_same_under_a_name_of_digits(gpus, command):
    row, csv = FAST | {"gpu": "5070"}, f"gpu,like,{RATE}\n5070,h100_sxm,6.7e12\n"
    words = (*STEP, "--gpu", "5070", "--gpus")
    answers = [
        command(*words, path, "--format", "json")
        for path in (gpus(row), gpus([row], ".2.json"), gpus(csv, ".csv"), gpus("\ufeff" + csv, ".bom.csv"))
    ]
    assert len({answer.json["total_us"] for answer in answers}) == 1
    assert not any("replaces" in answer.err for answer in answers)
    assert command(*words, gpus(csv, ".csv")).out.startswith("qwen3-0.6b on 5070,")


def test_a_catalogue_gpu_is_overridden_for_this_command(gpus, command):
    path = gpus({"gpu": "l4", "tdp_w": 1})
    query = "select tdp_w, source from gpus where gpu = 'l4'"
    assert command("sql", query, "--gpus", path, "--format", "json").json == [
        {"tdp_w": 1.0, "source": "given in gpus.json"}
    ]
    assert command("sql", query, "--format", "json").json[0]["tdp_w"] > 1


IMPOSSIBLE = {"int64": (2**62,), "float64": (2.0**62, 1e308)}


@pytest.mark.parametrize("column", [each for each in load_contracts(folder("schemas"))["gpus"].columns if each.unit])
def test_every_quantity_of_a_gpu_is_bounded(column):
    """A table of hypothetical GPUs cannot state what no GPU has: 2^62 W were served as 3.7e17 W."""
    with connect() as session:
        row = session.query("select * from gpus where gpu = 'mi300x'").to_pylist()[0]
        for value in IMPOSSIBLE[column.type]:
            with pytest.raises(KernelSightError, match=f"column {column.name}: 1 row fails"):
                session.give("gpus", [row | {column.name: value if column.type == "int64" else float(value)}])


@pytest.mark.parametrize("value", ["1e400", "nan", "9", "", "gfx", "9.0 or so", "-9.0"])
def test_a_compute_capability_has_the_form_of_one(value):
    with connect() as session:
        row = session.query("select * from gpus where gpu = 'h100_sxm'").to_pylist()[0]
        with pytest.raises(KernelSightError, match="column compute_capability: 1 row fails"):
            session.give("gpus", [row | {"compute_capability": value}])
        session.give("gpus", [row | {"compute_capability": "13.5"}])
