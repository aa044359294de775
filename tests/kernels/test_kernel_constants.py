"""Which kernel a call runs on, and with which constants: engine, GPU, generation, formats, head width, lineage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.catalog.tables import contracts, facts
from kernelsight.kernels.coefficients import Coefficient
from kernelsight.kernels.families import COMMUNICATION, FAMILIES
from kernelsight.kernels.kernel_constants import (
    UNKNOWN,
    constants_at,
    family_facts,
    lineage_of,
    parts_there,
    rows_of_part,
    structure_at,
)
from kernelsight.kernels.kernel_selection import choose
from kernelsight.kernels.pack import pack_table

FAMILY = "prefill_attention"
TILE = Coefficient("query_tile", "rows", 128.0, 16.0, 512.0, "fixed", "rows of queries")
SPLITS = Coefficient("splits_keys", "1", 1.0, 0.0, 1.0, "fixed", "1: keys are split")
FLOOR = Coefficient("floor_us", "us", 2.0, 1.0, 50.0, "hardware", "launch")
FACTOR = Coefficient("tensor_factor", "1", 1.5, 0.5, 40.0, "implementation", "tensor time")
COEFFICIENTS = (FLOOR, FACTOR, TILE, SPLITS)


def implementations(*rows: tuple[str, str, str | None, float | None]) -> pa.Table:
    """Return (implementation, lineage, coefficient, value) rows of the family as ``kernel_implementations``."""
    names = ("implementation", "lineage", "coefficient", "value")
    stated = [{"family": FAMILY, **dict(zip(names, row, strict=True)), "source": "a test"} for row in rows]
    return pa.Table.from_pylist(stated, schema=contracts()["kernel_implementations"].schema)


def chosen(implementation: str, gpu: str, rows: float = 10.0, **stated: Any) -> dict[str, Any]:
    """Return one row that counts what an engine ran."""
    named = {"family": FAMILY, "part": "choice", "level": "gpu", "coefficient": "rows", "unit": "1", "source": "a test"}
    where = {"engine": "vllm", "dtype": "bf16/bf16", "position": 128}
    return {**named, **where, "implementation": implementation, "gpu": gpu, "value": rows, **stated}


def constant(coefficient: str, value: float, level: str = "family", **path: Any) -> dict[str, Any]:
    """Return one fitted number."""
    named = {"family": FAMILY, "part": "constant", "unit": "1", "source": "a test"}
    return {**named, "level": level, "coefficient": coefficient, "value": value, **path}


KNOWN = family_facts(
    FAMILY,
    implementations(
        ("fa2", "flash", "query_tile", 64.0),
        ("fa3", "flash", "query_tile", 128.0),
        ("fa4", "flash", None, None),
        ("triton", "triton", "splits_keys", 0.0),
        ("only_sm_100", "flash", "served_to", 10.3),
    ),
    facts("gpus"),
)


def kernel(rows: list[dict[str, Any]], **call: Any) -> tuple[str, bool]:
    """Return the choice of a BF16 call of vLLM on an H100 with heads of 128, but for what is stated."""
    stated = {"engine": "vllm", "gpu": "h100_sxm", "dtype": "bf16/bf16", "head_dim": 128, **call}
    return choose(KNOWN, pack_table(rows), FAMILY, [stated])[0]


def test_without_sweeps_the_kernel_is_unknown() -> None:
    assert kernel([]) == (UNKNOWN, False)
    assert kernel([{**chosen("fa3", "h100_sxm"), "family": "gemm"}]) == (UNKNOWN, False)


def test_the_engine_counts_before_the_gpu() -> None:
    rows = [chosen("fa3", "h100_sxm", engine="sglang"), chosen("fa2", "a100_sxm")]
    assert kernel(rows) == ("fa2", False)
    assert kernel(rows, engine="sglang") == ("fa3", True)
    # no sweep of that engine: what other engines ran there
    assert kernel(rows, engine="trtllm") == ("fa3", True)


def test_a_kernel_of_newer_gpus_gives_way_to_another_engine_s() -> None:
    rows = [chosen("cubins_of_sm_100", "b200_sxm"), chosen("fa3", "h100_sxm", engine="sglang")]
    assert kernel(rows) == ("fa3", True)
    assert kernel(rows, gpu="gb200") == ("cubins_of_sm_100", True)
    # older than all that was measured: the engine's own after all
    assert kernel(rows, gpu="a100_sxm") == ("cubins_of_sm_100", False)


def test_a_kernel_of_one_generation_alone_does_not_run_on_the_next() -> None:
    rows = [
        chosen("only_sm_100", "b200_sxm"),
        chosen("triton", "l40s", 1.0),
        chosen("mma", "rtx_pro_6000_server", engine="trtllm"),
    ]
    assert kernel(rows, gpu="gb300") == ("only_sm_100", True)
    assert kernel(rows, gpu="rtx_pro_6000_server") == ("triton", False)
    # none of the engine's own: what another engine ran there; and a user's own choice is taken
    assert kernel(rows[::2], gpu="rtx_5090") == ("mma", True)
    assert kernel(rows, gpu="rtx_5090", implementation="only_sm_100") == ("only_sm_100", False)
    assert kernel(rows[:1], gpu="rtx_5090") == ("only_sm_100", False)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("h100_sxm", ("own", True)),
        ("h200_sxm", ("hopper", True)),
        # same generation as a GPU that was swept, whatever its number
        ("gb200", ("blackwell", True)),
        # no GPU of its generation: the nearest of those before it, whose kernels it runs, else the nearest
        ("l40s", ("ampere", False)),
        ("t4", ("ampere", False)),
        ("rtx_pro_6000_server", ("blackwell", False)),
    ],
)
def test_the_gpu_then_its_generation_then_the_nearest_one(gpu: str, expected: tuple[str, bool]) -> None:
    rows = [
        chosen("own", "h100_sxm", 1.0),
        chosen("hopper", "h200_sxm"),
        chosen("ampere", "a100_sxm"),
        chosen("blackwell", "b200_sxm"),
    ]
    assert kernel(rows, gpu=gpu) == expected


def test_number_formats_then_the_head_width_then_the_commonest() -> None:
    rows = [
        chosen("fp8_kernel", "h100_sxm", dtype="bf16/fp8"),
        chosen("wide", "h100_sxm", 3.0, position=256),
        chosen("rare", "h100_sxm", 4.0),
        chosen("common", "h100_sxm", 5.0),
        chosen("often_wide", "h100_sxm", 9.0, position=512),
    ]
    assert kernel(rows) == ("common", True)
    assert kernel(rows, dtype="bf16/fp8") == ("fp8_kernel", True)
    assert kernel(rows, head_dim=256) == ("wide", True)
    # a width and formats that no sweep holds: the commonest of what is left
    assert kernel(rows, head_dim=96) == ("often_wide", True)
    assert kernel([*rows, chosen("common", "h100_sxm", 5.0, position=64)], head_dim=96) == ("common", True)
    assert kernel(rows, dtype="fp8/fp8", head_dim=256) == ("wide", True)


def test_equal_counts_are_decided_by_the_name_whatever_the_order() -> None:
    rows = [chosen("b", "h100_sxm"), chosen("a", "h100_sxm"), chosen("c", "h100_sxm")]
    assert kernel(rows) == kernel(rows[::-1]) == ("a", True)


def test_an_unknown_kernel_stands_alone_and_a_known_one_in_its_lineage() -> None:
    assert lineage_of(KNOWN, "fa4") == "flash"
    assert lineage_of(KNOWN, "new") == "new"


def test_structure_is_the_kernel_s_own_else_its_lineage_s_else_the_start() -> None:
    names = ("fa2", "fa3", "fa4", "triton", "new")
    paths = [{"implementation": name, "lineage": lineage_of(KNOWN, name)} for name in names]
    found = structure_at(KNOWN, COEFFICIENTS, paths)
    # the first kernel of a lineage stands for those of which nothing is stated
    assert found["query_tile"].tolist() == [64.0, 128.0, 64.0, 128.0, 128.0]
    assert found["splits_keys"].tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert set(found) == {"query_tile", "splits_keys"}


def at(rows: list[dict[str, Any]], implementation: str, gpu: str = "h100_sxm", **more: Any) -> dict[str, np.ndarray]:
    """Return the constants of one kernel under vLLM in BF16."""
    lineage = lineage_of(KNOWN, implementation)
    path = {"lineage": lineage, "implementation": implementation, "dtype": "bf16/bf16", "engine": "vllm", "gpu": gpu}
    return constants_at(KNOWN, pack_table(rows), FAMILY, COEFFICIENTS, [path], **more)


FLASH = {"lineage": "flash"}
OWN = {**FLASH, "implementation": "fa3", "dtype": "bf16/bf16", "engine": "vllm", "gpu": "h100_sxm"}
FITTED = [
    constant("tensor_factor", 2.0),
    constant("tensor_factor", 1.5, "lineage", **FLASH),
    constant("tensor_factor", 1.2, "implementation", **FLASH, implementation="fa3"),
    constant("tensor_factor", 1.1, "gpu", **OWN),
    constant("floor_us", 4.0),
    constant("floor_us", 0.9, "device", gpu="h100_sxm"),
    constant("floor_us", 1.3, "stack", engine="sglang"),
]


def test_constants_are_the_products_of_the_nodes_on_the_path() -> None:
    found = at(FITTED, "fa3")
    assert found["tensor_factor"] == pytest.approx(2.0 * 1.5 * 1.2 * 1.1)
    assert found["floor_us"] == pytest.approx(4.0 * 0.9)
    assert found["query_tile"] == 128.0
    # a kernel without rows is its lineage, one without a lineage the family
    assert at(FITTED, "fa2")["tensor_factor"] == pytest.approx(2.0 * 1.5)
    assert at(FITTED, "new")["tensor_factor"] == pytest.approx(2.0)
    assert at(FITTED, "fa3", "b200_sxm")["tensor_factor"] == pytest.approx(2.0 * 1.5 * 1.2)


def test_a_gpu_without_a_fit_has_the_mean_factors_of_its_siblings() -> None:
    """Of one generation and kind of memory: a GDDR board of Ampere is no sibling of an A100."""
    assert at(FITTED, "fa3", "h20")["floor_us"] == pytest.approx(4.0 * 0.9)
    assert at(FITTED, "fa3", "h20")["tensor_factor"] == pytest.approx(2.0 * 1.5 * 1.2 * 1.1)
    both = [*FITTED, constant("floor_us", 1.6, "device", gpu="h200_sxm")]
    assert at(both, "fa3", "h20")["floor_us"] == pytest.approx(4.0 * (0.9 * 1.6) ** 0.5)
    assert at(both, "fa3", "h200_sxm")["floor_us"] == pytest.approx(4.0 * 1.6)
    # asked not to use its own sweep, a GPU has those of its siblings, where the fit holds any
    assert at(both, "fa3", "h200_sxm", measured=False)["floor_us"] == pytest.approx(4.0 * 0.9)
    ampere = [constant("floor_us", 4.0), constant("floor_us", 0.9, "device", gpu="a100_sxm")]
    assert at(ampere, "fa3", "a10g")["floor_us"] == pytest.approx(4.0)
    assert at(ampere, "fa3", "a100_pcie")["floor_us"] == pytest.approx(4.0 * 0.9)


def test_a_fit_that_left_a_generation_out_is_read_alone() -> None:
    left_out = [
        constant("tensor_factor", 3.0, without="hopper"),
        constant("tensor_factor", 7.0, without="ada"),
        constant("floor_us", 5.0, without="hopper"),
    ]
    assert at(FITTED + left_out, "fa3", without="hopper")["tensor_factor"] == pytest.approx(3.0)
    assert at(FITTED + left_out, "fa3")["tensor_factor"] == pytest.approx(2.0 * 1.5 * 1.2 * 1.1)


def test_values_stay_within_their_bounds_and_start_where_nothing_is_fitted() -> None:
    assert at([], "fa3")["tensor_factor"] == pytest.approx(1.5)
    assert at([constant("tensor_factor", 1e6)], "fa3")["tensor_factor"] == pytest.approx(40.0)
    assert at([constant("tensor_factor", 1e-6)], "fa3")["tensor_factor"] == pytest.approx(0.5)


def test_a_kernel_that_is_asked_for_counts_before_all_else_where_it_was_measured() -> None:
    rows = [
        chosen("fa3", "h100_sxm", 90.0),
        chosen("triton", "h100_sxm", 5.0),
        chosen("fa4", "b200_sxm", engine="sglang"),
    ]
    assert kernel(rows) == ("fa3", True)
    assert kernel(rows, implementation="triton") == ("triton", True)
    assert kernel(rows, implementation="never_measured") == ("fa3", True)


def test_rows_of_a_part_are_read_where_they_stand_together_and_searched_for_where_not() -> None:
    words = [("gemm", "constant"), ("gemm", "choice"), ("norm", "constant")]
    together = pa.table(
        {"family": [family for family, _ in words], "part": [part for _, part in words], "row": [0, 1, 2]}
    )
    apart = pa.concat_tables([together, together])
    for table in (together, apart):
        for family, part in words:
            kept = pc.and_(pc.equal(table["family"], family), pc.equal(table["part"], part))
            assert rows_of_part(table, family, part).to_pylist() == table.filter(kept).to_pylist()
        assert parts_there(table) == words
    assert rows_of_part(together, "norm", "choice").num_rows == 0
    assert parts_there(together.slice(0, 0)) == []


# where engines run a kernel, which no expression reads
SERVED = {"served", "served_to", "joins_prompts", "answers_w4a16_mxfp4", "stated"}


@pytest.mark.parametrize("family", FAMILIES)
def test_facts_state_the_structure_that_an_expression_reads_once_and_with_a_source(family: str) -> None:
    coefficients = FAMILIES[family].latency_model.coefficients
    assert all(one.low <= one.start <= one.high and (one.low > 0.0 or one.owner == "fixed") for one in coefficients)
    fixed = {one.name: one for one in coefficients if one.owner == "fixed"}
    rows = [row for row in facts("kernel_implementations").to_pylist() if row["family"] == family]
    assert len({(row["implementation"], row["coefficient"]) for row in rows}) == len(rows)
    stated: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        assert row["source"].strip() and bool(row["coefficient"]) == (row["value"] is not None), row
        own = stated.setdefault(row["lineage"], {}).setdefault(row["implementation"], set())
        if row["coefficient"] and row["coefficient"] not in SERVED:
            own.add(row["coefficient"])
            assert fixed[row["coefficient"]].low <= row["value"] <= fixed[row["coefficient"]].high, row
    kernels = [kernel for lineage in stated.values() for kernel in lineage]
    assert len(kernels) == len(set(kernels)), "a kernel of two lineages"
    # what one kernel states and its sibling leaves out would be inherited, meant or not
    if family in ("decode_attention", "mla_decode", *COMMUNICATION):
        assert all(len(set(map(frozenset, lineage.values()))) == 1 for lineage in stated.values())
