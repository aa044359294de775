"""The hardware facts: the contracts hold, and the numbers of one row agree with each other and with the other rows."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

ROOT = Path(__file__).resolve().parents[2]
DUCKDB_TYPES = {"string": "VARCHAR", "int64": "BIGINT", "float64": "DOUBLE", "bool": "BOOLEAN"}

REQUIRED_GPUS = set(
    """
    p100_sxm v100_sxm v100_pcie t4 a10g a10 a30 a40 a100_sxm a100_sxm_40gb a100_pcie a800_sxm a6000 l4 l20 l40 l40s
    rtx_3090 rtx_4090 rtx_5090 rtx_6000_ada rtx_pro_6000_server rtx_pro_6000_workstation gb10 h20 h100_sxm h100_pcie
    h100_nvl h800_sxm h200_sxm h200_nvl gh200 gh200_144gb b200_sxm b300_sxm gb200 gb300 mi100 mi210 mi250x mi300x
    mi308x mi325x mi350x mi355x b60 gaudi2 gaudi3 groq_lpu cerebras_wse3
    """.split()
)

# Dense FP16 tensor FLOP per clock and multiprocessor with FP32 accumulation. From NVIDIA's white papers of Volta,
# Turing, Ampere (GA100 and GA102), Ada, Hopper and RTX Blackwell; none gives it for data-centre Blackwell, where 8192
# doubles Hopper's. From AMD's white papers of CDNA 2, 3 and 4, and from Intel's Xe2 (8 XMX engines of 256) and Gaudi 3
# (8 matrix engines of 256 x 256 for 64 tensor processor cores; FP16 at a quarter of BF16). Groq: 4 planes of 320 x 320
# INT8 products, FP16 at a quarter (ISCA 2022); a Cerebras core: 8 products.
FP16_FLOP_PER_CLOCK = {
    "6.0": 256,
    "7.0": 1024,
    "7.5": 1024,
    "8.0": 2048,
    "8.6": 1024,
    "8.9": 1024,
    "9.0": 4096,
    "10.0": 8192,
    "10.3": 8192,
    "12.0": 1024,
    "12.1": 1024,
    "gfx908": 1024,
    "gfx90a": 1024,
    "gfx942": 2048,
    "gfx950": 4096,
    "xe2": 2048,
    "gaudi2": 10923,
    "gaudi3": 4096,
    "groq_tsp": 204800,
    "wse3": 16,
}
# GeForce cards, the A10G, the L20 and the L40 accumulate in FP32 at half rate; the H20 is cut to a quarter.
SLOWER_THAN_ITS_ARCHITECTURE = {"rtx_3090": 2, "rtx_4090": 2, "rtx_5090": 2, "a10g": 2, "l20": 2, "l40": 2, "h20": 4}


# columns that rows of `--gpus FILE` state, and no fact does
HYPOTHETICAL = {"measured_as"}


def contract(table: str) -> dict:
    """Return the contract of the facts of ``table`` as JSON."""
    stated = json.loads((ROOT / "schemas" / f"{table}.json").read_text())
    return stated | {"columns": [column for column in stated["columns"] if column["name"] not in HYPOTHETICAL]}


def load(table: str) -> duckdb.DuckDBPyRelation:
    """Read the catalogue file of ``table`` with the types of its contract."""
    types = {column["name"]: DUCKDB_TYPES[column["type"]] for column in contract(table)["columns"]}
    path = ROOT / "kernelsight" / "catalog" / f"{table}.csv"
    return duckdb.read_csv(str(path), header=True, columns=types, auto_detect=False, delimiter=",", quotechar='"')


def rows_of(table: str) -> dict[str, dict]:
    """Return the rows of ``table`` by their first column, the key."""
    rows = load(table).to_arrow_table().to_pylist()
    key = contract(table)["columns"][0]["name"]
    return {row[key]: row for row in rows}


GPUS = rows_of("gpus")
FABRICS = rows_of("fabrics")


def test_required_gpus_are_there():
    assert set(GPUS) >= REQUIRED_GPUS


@pytest.mark.parametrize(("table", "rows"), [("gpus", GPUS), ("fabrics", FABRICS)])
def test_every_row_names_its_documents(table, rows):
    columns = {column["name"] for column in contract(table)["columns"]}
    for key, row in rows.items():
        assert row["source"].strip(), key
        assert any(str(year) in row["source"] for year in range(2010, 2027)), f"{key}: no year in its source"
        estimated = row["estimated"].split(",") if row["estimated"] else []
        assert set(estimated) <= columns - {"source", "estimated"}, key
        assert len(estimated) == len(set(estimated)), key


@pytest.mark.parametrize("gpu", sorted(GPUS))
def test_fp16_rate_follows_from_multiprocessors_and_clock(gpu):
    row = GPUS[gpu]
    per_clock = FP16_FLOP_PER_CLOCK[row["compute_capability"] or row["architecture"]]
    per_clock /= SLOWER_THAN_ITS_ARCHITECTURE.get(gpu, 1)
    assert row["fp16_flops_per_s"] == pytest.approx(row["sm_count"] * row["sm_clock_hz"] * per_clock, rel=0.03)


@pytest.mark.parametrize("gpu", sorted(GPUS))
def test_narrower_types_are_faster(gpu):
    row = GPUS[gpu]
    if row["bf16_flops_per_s"] and gpu != "gaudi3":  # Gaudi 3 runs FP16 at a quarter of BF16, and FP8 at the same rate
        # the MI100 runs BF16 at half the rate of FP16
        assert row["bf16_flops_per_s"] == pytest.approx(row["fp16_flops_per_s"] / (2 if gpu == "mi100" else 1))
        if row["fp8_flops_per_s"]:
            assert row["fp8_flops_per_s"] == pytest.approx(2 * row["bf16_flops_per_s"], rel=0.03)
    if row["fp4_flops_per_s"]:  # Blackwell Ultra and GeForce FP8 with FP32 accumulation stand at 3 and 4 times FP8
        assert row["fp4_flops_per_s"] >= 1.99 * row["fp8_flops_per_s"]
    assert row["fp32_flops_per_s"] < row["fp16_flops_per_s"]


def test_types_that_an_architecture_lacks_are_null():
    for gpu, row in GPUS.items():
        has_bf16 = row["architecture"] not in ("pascal", "volta", "turing", "groq_tsp")
        has_fp8 = row["architecture"] not in "pascal volta turing ampere cdna1 cdna2 xe2 groq_tsp wse3".split()
        has_fp4 = row["architecture"] in ("blackwell", "blackwell_ultra", "cdna4")
        assert (row["bf16_flops_per_s"] is not None) == has_bf16, gpu
        assert (row["fp8_flops_per_s"] is not None) == has_fp8, gpu
        assert (row["fp4_flops_per_s"] is not None) == has_fp4, gpu


@pytest.mark.parametrize(
    ("column", "ascending"),
    [
        ("memory_bandwidth_bytes_per_s", "t4 a10 l40s v100_sxm a100_sxm h100_sxm h200_sxm b200_sxm gb200"),
        ("memory_bandwidth_bytes_per_s", "a100_sxm_40gb a100_pcie a100_sxm h100_sxm h100_nvl h200_nvl"),
        ("memory_bandwidth_bytes_per_s", "rtx_3090 rtx_4090 rtx_pro_6000_server rtx_5090"),
        ("memory_bandwidth_bytes_per_s", "mi100 mi250x mi300x mi325x mi355x"),
        (
            "memory_bytes",
            "t4 l4 a30 v100_sxm a100_sxm_40gb l40s h100_sxm h100_nvl h200_sxm b200_sxm gb200 b300_sxm gb300",
        ),
        ("memory_bytes", "mi210 mi300x mi325x mi355x"),
        ("bf16_flops_per_s", "a10g l4 a100_sxm l40s rtx_pro_6000_server h100_pcie h100_sxm b200_sxm gb200"),
        ("link_bytes_per_s", "v100_pcie a40 a30 v100_sxm h800_sxm a100_sxm h100_sxm b200_sxm"),
        ("pcie_bytes_per_s", "v100_sxm a100_sxm h100_sxm b300_sxm"),
        ("l2_bytes", "t4 v100_sxm a30 a100_sxm h100_sxm h200_sxm b200_sxm"),
    ],
)
def test_generations_are_in_order(column, ascending):
    values = [GPUS[gpu][column] for gpu in ascending.split()]
    assert all(low < high for low, high in zip(values, values[1:], strict=False)), values


def test_no_number_is_off_by_a_unit():
    for gpu, row in GPUS.items():
        if row["kind"] == "on_chip_accelerator":  # little memory, a hundred times as fast
            assert 1e3 < row["memory_bandwidth_bytes_per_s"] / row["memory_bytes"] * 1e-2 < 1e5, gpu
            assert row["l2_bytes"] == row["memory_bytes"], gpu
            continue
        assert 0.8e9 < row["sm_clock_hz"] < 3.2e9, gpu
        assert 2**20 <= row["l2_bytes"] < 2**29, gpu
        assert 2**33 < row["memory_bytes"] < 2**39, gpu
        assert 1e11 < row["memory_bandwidth_bytes_per_s"] < 1e13, gpu
        # FP16 FLOP per byte of memory traffic: the P100 has 29, the L40S 419; a slipped factor of 1000 falls outside.
        assert 25 < row["fp16_flops_per_s"] / row["memory_bandwidth_bytes_per_s"] < 700, gpu
        assert 50 < row["tdp_w"] <= 1400, gpu


def test_ecc_in_band_is_on_where_a_sixteenth_of_the_memory_holds_it():
    """And nowhere else: its bytes and its traffic go together."""
    for gpu, row in GPUS.items():
        assert bool(row["ecc_in_band"]) == ("holds ECC" in row["source"]), gpu


def test_links_are_those_of_their_fabric():
    for gpu, row in GPUS.items():
        if row["link_fabric"] is None:
            assert row["link_bytes_per_s"] == row["pcie_bytes_per_s"], gpu
        else:
            assert row["link_fabric"] in FABRICS, gpu
            assert row["link_bytes_per_s"] <= FABRICS[row["link_fabric"]]["bytes_per_s"], gpu


@pytest.mark.parametrize("gpu", ["a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "mi300x", "a40", "h200_nvl"])
def test_link_bandwidth_is_that_of_one_direction(gpu):
    bidirectional_gb_per_s = {  # as the data sheets print it
        "a100_sxm": 600,
        "h100_sxm": 900,
        "h200_sxm": 900,
        "b200_sxm": 1800,
        "gb200": 1800,
        "mi300x": 896,
        "a40": 112.5,
        "h200_nvl": 900,
    }
    assert GPUS[gpu]["link_bytes_per_s"] == bidirectional_gb_per_s[gpu] * 1e9 / 2


def test_fabrics_are_in_order():
    for family in (
        "nvlink2 nvlink3 nvlink4 nvlink5",
        "pcie3_x16 pcie4_x16 pcie5_x16 pcie6_x16",
        "infiniband_hdr infiniband_ndr infiniband_xdr",
        "infinity_fabric_mi200 infinity_fabric_mi300 infinity_fabric_mi350",
    ):
        rates = [FABRICS[fabric]["bytes_per_s"] for fabric in family.split()]
        assert all(low < high for low, high in zip(rates, rates[1:], strict=False)), family
    slowest_nvlink = max(row["latency_us"] for row in FABRICS.values() if row["kind"] == "nvlink")
    assert slowest_nvlink < FABRICS["pcie5_x16"]["latency_us"]
    assert FABRICS["pcie5_x8"]["bytes_per_s"] == FABRICS["pcie4_x16"]["bytes_per_s"]
    assert (FABRICS["nvlink4"]["max_gpus"], FABRICS["nvlink5"]["max_gpus"]) == (8, 72)


def test_efficiency_and_latency_are_marked_as_estimates():
    for fabric, row in FABRICS.items():
        assert {"efficiency", "latency_us"} <= set(row["estimated"].split(",")), fabric
