"""Profiles as measurements: torch traces with recorded shapes, tables with mapped columns, and what cannot be used."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import run_command
from tests.logs.written import DATA, chrome_trace, nsys, save

MM = {"name": "aten::mm", "Input Dims": [[512, 4096], [4096, 14336]], "Input type": ["c10::BFloat16"] * 2}
LINEAR = {"name": "aten::linear", "Input Dims": [[4, 128, 4096], [1024, 4096], []], "Input type": ["c10::Half"] * 2}
BMM = {"name": "aten::bmm", "Input Dims": [[16, 8, 64], [16, 64, 512]], "Input type": ["c10::BFloat16"] * 2}


def trace(*operators: dict, kernels: list[tuple[int, str, float]]) -> dict:
    """Return a trace of operators, numbered from 1, and of kernels: (operator, name, us)."""
    events = [
        {"cat": "cpu_op", "name": one["name"], "ts": 1.0, "dur": 1.0, "args": {**one, "External id": number}}
        for number, one in enumerate(operators, 1)
    ]
    events += [
        {"cat": "kernel", "name": name, "ts": 5.0, "dur": us, "args": {"External id": number}}
        for number, name, us in kernels
    ]
    return {"deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": events}


def imported(tmp_path: Path, *words: object) -> list[dict]:
    target = tmp_path / "points.parquet"
    answer = run_command("calibrate", "import", "profile", *words, "-o", target)
    assert answer.status == 0, answer.err
    return pq.read_table(target).to_pylist()


def shape(row: dict) -> dict:
    return {name: size for name, size in row["shape"].items() if size is not None}


def test_kernels_get_the_shapes_of_the_operators_that_launched_them(tmp_path):
    kernels = [(1, "nvjet_tst_128x256", 100.0), (1, "splitKreduce_kernel", 4.0), (2, "sm80_xmma_gemm_f16", 30.0)]
    kernels += [(3, "void cutlass::Kernel2<bmm>", 8.0), (9, "nvjet_tst_64x8", 7.0)]
    path = save(tmp_path / "trace.json", trace(MM, LINEAR, BMM, kernels=kernels))
    rows = {row["family"] + row["dtype"]: row for row in imported(tmp_path, path)}
    assert {name: (shape(row), row["latency_us"]) for name, row in rows.items()} == {
        "gemmbf16": ({"m": 512, "n": 14336, "k": 4096}, 104.0),
        "gemmfp16": ({"m": 512, "n": 1024, "k": 4096}, 30.0),
        "batched_gemmbf16": ({"batch": 16, "m": 8, "n": 512, "k": 64}, 8.0),
    }
    assert {row["gpu"] for row in rows.values()} == {"h200_sxm"}
    assert {row["implementation"] for row in rows.values()} == {"cublas"}
    summary = run_command("calibrate", "import", "profile", path, "--format", "json").json
    assert {row["reason"]: row["rejected"] for row in summary if row["reason"]} == {"no_shape_of_its_operator": 1}


@pytest.mark.parametrize(
    "sizes", [None, {"a": 1}, [[-1, 8], [8, 8]], [[1.5, 8], [8, 8]], [[2**70, 8], [8, 8]], [["8"]]]
)
def test_an_event_that_cannot_be_used_costs_that_event_alone(tmp_path, sizes):
    found = trace(
        MM,
        {**MM, "Input Dims": sizes},
        kernels=[(1, "nvjet_tst", 100.0), (2, "nvjet_tst", 100.0), (1, "nvjet_tst", 1e300)],
    )
    strange = [5, None, {"cat": "cpu_op", "name": "aten::mm"}, {"cat": "cpu_op", "name": [1], "args": []}]
    strange += [
        {"cat": "kernel", "name": 7, "dur": 100.0, "args": {"External id": number}} for number in ([1], "1", None)
    ]
    found["traceEvents"] += strange
    path = save(tmp_path / "trace.json", found)
    assert [shape(row) for row in imported(tmp_path, path)] == [{"m": 512, "n": 14336, "k": 4096}]
    summary = run_command("calibrate", "import", "profile", path, "--format", "json").json
    reasons = {row["reason"]: row["rejected"] for row in summary if row["reason"]}
    assert reasons == {"no_duration": 1, "no_shape_of_its_operator": 3, "number_format_or_shape_not_recorded": 1}


def test_equal_launches_are_one_point_and_unknown_formats_none(tmp_path):
    other = {**MM, "Input type": ["float"] * 2}
    kernels = [(1, "nvjet", 100.0), (2, "nvjet", 120.0), (3, "nvjet", 110.0), (4, "nvjet", 990.0)]
    [row] = imported(tmp_path, save(tmp_path / "t.json", trace(MM, MM, MM, other, kernels=kernels)))
    assert (row["latency_us"], row["samples"]) == (110.0, 3)


def test_a_table_whose_columns_are_mapped(tmp_path):
    path = tmp_path / "kernels.csv"
    path.write_text("Kernel,rows,out,in,avg (ms)\nnvjet_a,64,4096,4096,0.02\nmine,1,1,1,1\nsplit_gemm,8,4096,4096,x\n")
    mapped = ["kernel=Kernel", "m=rows", "n=out", "k=in", "latency_us=avg (ms)[ms]", "dtype==fp8"]
    # "mine" names no family, but its sizes are those of a product
    own, row = sorted(
        imported(tmp_path, path, "--gpus", "L40S", "--columns", *mapped), key=lambda point: point["shape"]["m"]
    )
    assert (own["family"], own["latency_us"]) == ("gemm", 1000.0)
    assert (row["gpu"], row["latency_us"], row["dtype"], shape(row)) == (
        *("l40s", 20.0, "fp8"),
        {"m": 64, "n": 4096, "k": 4096},
    )


OWN = "gpu,family,dtype,m,n,k,latency_us\nl40s,gemm,bf16,64,4096,4096,31.5\nl40s,gemm,bf16,1,4096,4096,25\n"


def test_a_csv_with_our_columns_is_a_sweep_as_it_is(tmp_path):
    path = save(tmp_path / "mine.csv", OWN)
    rows = imported(tmp_path, path)
    assert [(row["gpu"], row["latency_us"], shape(row)["m"]) for row in rows] == [("l40s", 25.0, 1), ("l40s", 31.5, 64)]
    pack = tmp_path / "pack.parquet"
    fitted = run_command("calibrate", "fit", "--few", path, "--onto", "default", "-o", pack)
    assert fitted.status == 0 and "mine.csv: 2 rows kept of 2" in fitted.err
    assert "2 points of 1 kernels in 1 families" in fitted.err
    points = pq.read_table(pack, filters=[("part", "=", "points")])
    assert set(points["gpu"].to_pylist()) == {"l40s"}


@pytest.mark.parametrize(
    ("header", "flag"),
    [
        ("device,op,dtype,M,N,K,time_ms", "--columns m=M n=N k=K 'latency_us=time_ms[ms]' family=op gpu=device."),
        ("gpu,family,dtype,m,n,k,Latency (us)", "--columns 'latency_us=Latency (us)'."),
    ],
)
def test_columns_of_other_names_are_proposed(tmp_path, header, flag):
    path = save(tmp_path / "mine.csv", f"{header}\nl40s,gemm,bf16,64,4096,4096,31.5\n")
    for command in (
        ["import", "profile", path],
        ["fit", "--few", path, "--onto", "default", "-o", tmp_path / "p.parquet"],
    ):
        answer = run_command("calibrate", *command)
        assert answer.status == 2 and answer.err.rstrip().endswith(flag), answer.err
    assert (
        shape(imported(tmp_path, path, *shlex.split(flag[:-1]))[0])["k"] == 4096
    )  # with the columns that have our names


TABLE = "m,us\n8,1\n"
REFUSED = [
    (save, "nsys.sqlite", None, [], "has times of kernels (all_reduce 50%, gemm 50%)"),
    (save, "a.csv", (DATA / "posted" / "nsys_sum.csv").read_text(), [], "and no shapes: nothing can be fitted; give a"),
    (save, "a.txt", (DATA / "posted" / "key_averages.txt").read_text(), [], "has times of kernels (gemm 92%"),
    (save, "t.json", chrome_trace(), [], "and no shapes"),
    (save, "a.csv", TABLE, ["m=m", "latency_us=us"], "needs columns for latency_us, dtype, and family or kernel"),
    (save, "a.csv", TABLE, ["family==gemm", "m=m", "latency_us=us", "dtype==bf16"], "kernels of gemm need k, n"),
    (save, "a.csv", TABLE, ["speed=m"], "unknown column 'speed'"),
    (save, "a.csv", TABLE, ["family==gemm", "m=q", "latency_us=us", "dtype==bf16"], "missing columns q"),
]


@pytest.mark.parametrize(("write", "name", "content", "mapped", "words"), REFUSED)
def test_what_cannot_be_fitted_is_said_in_one_sentence(tmp_path, write, name, content, mapped, words):
    path = nsys(tmp_path / name) if content is None else write(tmp_path / name, content)
    columns = ["--columns", *mapped] if mapped else []
    answer = run_command("calibrate", "import", "profile", path, "--gpus", "h100", *columns)
    assert answer.status == 2 and words in answer.err, answer.err
    assert answer.err.count("\n") == 1 and len(answer.err.replace(str(path), "")) <= 200


def test_a_profile_without_a_gpu_is_refused(tmp_path):
    content = {**trace(MM, kernels=[(1, "nvjet", 1.0)]), "deviceProperties": []}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(content))
    assert "names no GPU; add --gpus NAME" in run_command("calibrate", "import", "profile", path).err
