"""Kernels of profiles: one forward pass of vLLM, Chrome traces, Nsight Systems; families by names."""

from __future__ import annotations

import gzip
import json
import sqlite3

import pytest

from kernelsight.files.row_faults import Faults
from kernelsight.logs import read_logs
from kernelsight.logs.profiles import with_families
from tests.logs.asked import faults, refusal, rows
from tests.logs.written import DATA, chrome_trace, nsys, save

FORWARD = DATA / "forward.rank0.kernels.json"


def test_one_forward_pass():
    tables = read_logs(kernels=FORWARD)
    found = {row["name"]: row for row in rows(tables, "production_kernels")}
    stated = json.loads(FORWARD.read_text())
    assert {name: (row["total_us"], row["calls"]) for name, row in found.items()} == {
        entry["name"]: (entry["us"], entry["calls"]) for entry in stated["kernels"]
    }
    attention = found["flash::flash_fwd_splitkv_kernel"]
    assert (attention["step_shape"], attention["rank"], attention["forwards"]) == ("decode=32x1@8192", 0, 1)
    assert attention["span_us"] == stated["span_us"]
    assert {row.get("family") for row in found.values()} == {"gemm", "decode_attention", "norm", "rope", None}
    assert faults(tables) == {"no_family": 1}  # a copy


def test_cases_add_lengths_and_say_which_attention_it_is(tmp_path):
    stated = json.loads(FORWARD.read_text())
    stated["kernels"][0] |= {"name": "FlashAttnFwdSm90", "example": "flash::FlashAttnFwdSm90<...>"}
    kernels = save(tmp_path / "a.kernels.json", stated)
    for query, family in ((1, "decode_attention"), (512, "prefill_attention")):
        request = {"query_len": query, "kv_len": 8192, "num_draft_tokens": 0}
        case = {"case": "decode=32x1@8192", "requests": [request] * 2, "median_us": 99.0, "ranks": []}
        tables = read_logs(kernels=[kernels, save(tmp_path / "out.json", [case])])
        [row] = [row for row in rows(tables, "production_kernels") if row["name"] == "FlashAttnFwdSm90"]
        assert (row["query_lens"], row["kv_lens"], row["family"]) == ([query] * 2, [8192] * 2, family)
    [alone] = [r for r in rows(read_logs(kernels=kernels), "production_kernels") if r["name"] == "FlashAttnFwdSm90"]
    assert alone["family"] == "attention"
    assert "has cases without kernels" in refusal(kernels=tmp_path / "out.json")


def test_chrome_trace(tmp_path):
    tables = read_logs(kernels=save(tmp_path / "trace.json.gz", chrome_trace()))
    found = {row["name"]: row for row in rows(tables, "production_kernels")}
    assert set(found) == {"nvjet_tst_64x8", "flash::FlashAttnFwdSm90", "Memcpy DtoH"}  # no work of the CPU
    assert (found["nvjet_tst_64x8"]["total_us"], found["nvjet_tst_64x8"]["calls"]) == (90.0, 3)
    assert found["nvjet_tst_64x8"]["rank"] == 1 and found["nvjet_tst_64x8"]["span_us"] == 302.0


def test_tables_of_profilers_without_times_are_refused(tmp_path):
    header = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    row = '"0","gemm_kernel","DRAM Throughput","%","81.2"\n'
    assert "has no kernel with a time" in refusal(kernels=save(tmp_path / "a.csv", header + row))
    bad = header + '"0","gemm_kernel","Duration","usecond","n/a"\n"1","gemm_kernel","Duration","ms","2"\n'
    tables = read_logs(kernels=save(tmp_path / "b.csv", bad))
    assert (rows(tables, "production_kernels")[0]["total_us"], faults(tables)) == (2000.0, {"unreadable_value": 1})


def test_kernels_with_impossible_times_are_left_out_and_counted(tmp_path):
    sound = json.loads(FORWARD.read_text())
    sound["kernels"][0]["us"], sound["kernels"][1]["calls"] = -11.0, -1
    tables = read_logs(kernels=save(tmp_path / "case.rank0.kernels.json", sound))
    left = {row["name"] for row in rows(tables, "production_kernels")}
    assert not {kernel["name"] for kernel in sound["kernels"][:2]} & left
    assert len(left) == len({kernel["name"] for kernel in sound["kernels"]}) - 2
    assert faults(tables)["impossible_kernel"] == 2


def test_nsight_systems(tmp_path):
    path = nsys(tmp_path / "profile.sqlite")
    tables = read_logs(kernels=path)
    found = {(row["rank"], row["family"]): row for row in rows(tables, "production_kernels")}
    assert set(found) == {(0, "all_reduce"), (0, "gemm"), (1, "all_reduce"), (1, "gemm")}
    assert (found[0, "gemm"]["calls"], found[0, "gemm"]["total_us"], found[0, "gemm"]["span_us"]) == (2, 1.0, 6.5)
    packed = tmp_path / "profile.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert rows(read_logs(kernels=packed), "production_kernels") != []
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("create table t (x)")
    other.commit()
    other.close()
    assert "cannot be asked (no such table: CUPTI_ACTIVITY_KIND_KERNEL). Give an export of Nsight Systems" in refusal(
        kernels=tmp_path / "other.sqlite"
    )


@pytest.mark.parametrize(
    "name, family",
    [
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<Mainloop> >", "attention"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int> >", "gemm"),
        ("void vllm::moe::topkGatingSoftmax<8, 128>(float*)", "moe"),
        ("_fused_moe_kernel", "moe"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL", "all_gather"),
        ("void vllm::rotary_embedding_kernel<float>", "rope"),
        ("void vllm::reshape_and_cache_flash_kernel<float>", "kv_write"),
        ("void vllm::act_and_mul_kernel<silu>", "activation"),
        ("BatchDecodeWithPagedKVCacheKernel", "decode_attention"),
        ("BatchPrefillWithPagedKVCacheKernel", "prefill_attention"),
        ("void at::native::index_select_kernel", "embedding"),
        ("void at::native::elementwise_kernel<128, 2>", None),
    ],
)
def test_families_by_name(name, family):
    import polars as pl

    faults_found = Faults()
    assert with_families(pl.DataFrame({"name": [name]}), faults_found)["family"].to_list() == [family]
    assert ("no_family" in faults_found.counted) == (family is None)
