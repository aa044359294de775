"""Files of Kernel Tuner: caches and T4 results, packed, cut short, and entries that cannot be used."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.kernels.kernel_names import family_of
from kernelsight.searching.arrays import SpaceArrays
from kernelsight.searching.scenarios import as_spelled
from kernelsight.searching.tuner_files import read_tuner_file

ENTRIES = {
    "16,1": {"block_size_x": 16, "sh": 1, "time": 0.5, "times": [0.4, 0.6], "compile_time": 250.0, "benchmark_time": 9},
    "32,1": {"block_size_x": 32, "sh": 1, "time": "CompilationFailedConfig", "compile_time": 100.0},
    "64,1": {"block_size_x": 64, "sh": 1, "time": "RuntimeFailedConfig"},
    "64,0": {"block_size_x": 64, "sh": 0, "__error__": "InvalidConfig"},
    "8,0": {"block_size_x": 8, "sh": 0, "time": float("nan")},
    "4,0": {"sh": 0, "time": 1.0},
}


def cache(entries: dict | None = None) -> str:
    header = {"device_name": "A4000", "kernel_name": "conv", "problem_size": [4096, 4096]}
    header |= {"tune_params_keys": ["block_size_x", "sh"], "tune_params": {"block_size_x": [16], "sh": [0, 1]}}
    return json.dumps(header | {"cache": ENTRIES if entries is None else entries}, indent="")


def written(tmp_path, text, name="cache.json"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_a_cache_becomes_rows_in_microseconds(tmp_path):
    found = read_tuner_file(written(tmp_path, cache()))
    first = found.rows[0]
    assert (first["space"], first["gpu"], first["latency_us"], first["samples"]) == ("conv", "A4000", 500.0, 2)
    assert (first["compile_s"], first["benchmark_s"]) == (0.25, 0.009)
    assert first["cv"] == pytest.approx(0.1 * 2**0.5 / 0.5)
    assert json.loads(first["parameters"]) == {"block_size_x": 16, "sh": 1}
    assert [row["status"] for row in found.rows] == ["ok", "compile_failed", "runtime_failed"]
    assert [row["latency_us"] for row in found.rows[1:]] == [None, None]


def test_entries_that_are_not_used_are_counted_by_reason(tmp_path):
    found = read_tuner_file(written(tmp_path, cache()))
    assert found.rejected == {
        "configuration that violates a restriction of the space": 1,
        "time that is missing, not above 0 or not finite": 1,
        "entry without some of its parameters": 1,
    }
    assert found.read == len(ENTRIES)


def test_a_cache_without_its_closing_braces_is_read_to_its_last_whole_entry(tmp_path):
    text = cache()
    whole = read_tuner_file(written(tmp_path, text))
    cut = read_tuner_file(written(tmp_path, text.rstrip().removesuffix("}").rstrip().removesuffix("}"), "open.json"))
    assert [row["parameters"] for row in cut.rows] == [row["parameters"] for row in whole.rows]
    assert cut.notes == ["open.json is cut short: 6 whole entries were read"]
    half = read_tuner_file(written(tmp_path, text[: text.index('"64,1"') + 20], "half.json"))
    assert [row["status"] for row in half.rows] == ["ok", "compile_failed"]


def test_a_packed_file_that_ends_too_early_is_read_as_far_as_it_goes(tmp_path):
    entries = {f"{n},1": {"block_size_x": n, "sh": 1, "time": 1.0 + n * 0.37 % 1} for n in range(1, 3000)}
    path = written(tmp_path, cache(entries), "big.json.gz")
    path.write_bytes(path.read_bytes()[:-2000])
    found = read_tuner_file(path)
    assert 100 < len(found.rows) < 2999
    assert "cut short" in found.notes[0]


def test_t4_results_are_read(tmp_path):
    def result(block, validity="correct", time=2.0):
        times = {"compilation": 100.0, "benchmark": 50.0, "runtimes": [time, time]}
        return {
            **{"configuration": {"block_size_x": block}, "times": times, "invalidity": validity, "correctness": 1},
            "measurements": [{"name": "time", "value": time, "unit": "ms"}],
        }

    results = [result(16), result(32, "compile"), result(48, "correctness"), result(64, "constraints")]
    text = json.dumps({"schema_version": "1.0.0", "results": results})
    folder = tmp_path / "hotspot"
    folder.mkdir()
    found = read_tuner_file(written(folder, text, "A100_T4.json.gz"))
    assert [(row["space"], row["gpu"], row["status"]) for row in found.rows] == [
        ("hotspot", "A100", "ok"),
        ("hotspot", "A100", "compile_failed"),
        ("hotspot", "A100", "wrong_result"),
    ]
    assert (found.rows[0]["latency_us"], found.rows[0]["compile_s"]) == (2000.0, 0.1)
    assert "names neither kernel nor GPU: space 'hotspot' and GPU 'A100' are taken from its path" in found.notes[0]
    named = read_tuner_file(folder / "A100_T4.json.gz", "h", "a100_sxm")
    assert (named.rows[0]["space"], named.rows[0]["gpu"], named.notes) == ("h", "a100_sxm", [])


def test_a_configuration_with_two_times_is_not_used(tmp_path):
    results = [
        {"configuration": {"a": 1}, "times": {"runtimes": [time]}, "invalidity": "correct", "correctness": 1}
        for time in (1.0, 2.0)
    ]
    found = read_tuner_file(written(tmp_path, json.dumps({"results": results})), "s", "g")
    assert (found.rows, found.rejected) == ([], {"configuration with two different times": 2})


@pytest.mark.parametrize("text", ["", "{}", "[]", "no", '{"cache": 3}', '{"results": {}}', '"cache"'])
def test_other_files_are_refused(tmp_path, text):
    with pytest.raises(InvalidInput, match="is of no known tuner"):
        read_tuner_file(written(tmp_path, text))


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="does not exist; give a cache or T4 file"):
        read_tuner_file(tmp_path / "no.json")
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8bnot packed")
    with pytest.raises(InvalidInput, match="cannot be decompressed"):
        read_tuner_file(tmp_path / "bad.gz")


TRITON = [
    [{"kwargs": {"BLOCK_M": 64}, "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None}, times]
    for times in ([0.2, 0.19, 0.22], [float("inf")] * 3)
]  # fmt: skip


def test_the_cache_of_triton(tmp_path: Path) -> None:
    other = [TRITON[1][0] | {"num_warps": 8}, TRITON[1][1]]
    path = tmp_path / "matmul.autotune.json"
    path.write_text(json.dumps({"key": [4096], "configs_timings": [TRITON[0], other, "x"]}))
    found = read_tuner_file(path)
    first, second = found.rows
    assert (first["space"], first["gpu"], first["latency_us"]) == ("matmul", "unnamed GPU", 200.0)
    assert json.loads(first["parameters"]) == {"BLOCK_M": 64, "num_warps": 4, "num_ctas": 1, "num_stages": 3}
    assert first["cv"] == pytest.approx(0.03 / 1.683 / 0.2) and second["status"] == "runtime_failed"
    assert found.rejected == {"entry that is no object": 1}
    assert found.notes[0].endswith("1 candidates with p50, p20 and p80 in ms, lowest p50 0.2 ms (1 tie)")
    assert read_tuner_file(path, gpu="h100_sxm").rows[0]["gpu"] == "h100_sxm"


INDUCTOR = """\
[2026-01-10] AUTOTUNE mm(4096x4096, 4096x4096)
strides: [4096, 1], [1, 4096]
  mm 0.1721 ms 100.0%
  triton_mm_11 0.1812 ms 95.0% ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=32, num_stages=4, num_warps=8
SingleProcess AUTOTUNE benchmarking takes 0.5 seconds and 0.9 seconds precompiling for 2 choices
AUTOTUNE addmm(1x1024, 64x512, 512x1024)
  triton_mm_3 0.0101 ms 100.0% BLOCK_K=32, num_stages=2, num_warps=4
"""


def test_the_log_of_inductor(tmp_path: Path) -> None:
    (tmp_path / "tune.log").write_text(INDUCTOR)
    found = read_tuner_file(tmp_path / "tune.log")
    assert [(row["space"], row["latency_us"]) for row in found.rows] == [
        ("mm(4096x4096, 4096x4096)", pytest.approx(181.2)), ("addmm(1x1024, 64x512, 512x1024)", pytest.approx(10.1))
    ]  # fmt: skip
    assert found.rejected == {"choice of a library, without parameters": 1}
    assert family_of(found.rows[0]["space"]) == family_of(found.rows[1]["space"]) == "gemm"


SPELLED = {"NVIDIA A100 80GB PCIe": "a100_pcie", "NVIDIA A100-PCIE-40GB": None, "NVIDIA GeForce RTX 4090": "rtx_4090"}


@pytest.mark.parametrize("printed", SPELLED)
def test_a_gpu_of_a_space_is_found_by_its_catalogue_name(printed: str) -> None:
    arrays = SpaceArrays("gemm", np.zeros(0), np.zeros(0), None, {printed: None})
    named = as_spelled(arrays, {"gpu": SPELLED[printed] or "a100_pcie", "source_gpus": None})
    assert named["gpu"] == (printed if SPELLED[printed] else "a100_pcie")
