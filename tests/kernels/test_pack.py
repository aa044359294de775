"""Packs: fitted nodes to rows and back, files and bytes, and sentences for files that are none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.errors import ContractBroken, InvalidInput
from kernelsight.fitting.pack_rows import node_rows, write_pack
from kernelsight.kernels.coefficients import LEVELS, Node
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.pack import assumed_rows, nodes_of, pack_table, read_pack, with_assumed

NODES = [
    Node("family", (), "floor_us", 0.7, 0.1),
    Node("device", ("h100_sxm",), "floor_us", -0.05, 0.02),
    Node("stack", ("vllm",), "gap_us", 0.4, 0.1),
    Node("lineage", ("flash",), "tensor_factor", 0.2, 0.1),
    Node("implementation", ("flash", "fa3"), "tensor_factor", -0.3, 0.05),
    Node("dtype", ("flash", "fa3", "bf16/bf16"), "tensor_factor", 0.01, 0.2),
    Node("engine", ("flash", "fa3", "bf16/bf16", "vllm"), "gap_us", 1.0, 0.3),
    Node("gpu", ("flash", "fa3", "bf16/bf16", "vllm", "h100_sxm"), "gap_us", -1.0, 0.1),
]
UNITS = {"floor_us": "us", "tensor_factor": "1", "gap_us": "us"}


def rows_of(nodes: list[Node], without: str | None = None) -> pa.Table:
    return pack_table(node_rows("prefill_attention", nodes, UNITS, without, "a test"))


def test_nodes_come_back_from_their_rows() -> None:
    assert {node.level for node in NODES} == set(LEVELS)
    found = nodes_of(rows_of(NODES))
    assert [node[:3] for node in found] == [node[:3] for node in NODES]
    # values are kept to seven digits, deviations to four
    assert [node.log_value for node in found] == pytest.approx([node.log_value for node in NODES], abs=1e-7)
    assert [node.log_sd for node in found] == [node.log_sd for node in NODES]


def test_a_constant_has_its_unit_and_a_factor_none() -> None:
    rows = rows_of(NODES, "hopper").to_pylist()
    assert [row["unit"] for row in rows] == ["us", *["1"] * 7]
    assert {(row["part"], row["without"], row["assumed"]) for row in rows} == {("constant", "hopper", None)}
    assert rows[1]["gpu"] == "h100_sxm"
    assert rows[1]["lineage"] is None


def test_a_pack_is_read_as_it_was_written_and_equal_packs_are_equal_bytes(tmp_path: Path) -> None:
    rows = rows_of(NODES)
    write_pack(rows, tmp_path / "a.parquet")
    write_pack(rows_of(NODES), tmp_path / "b.parquet")
    found = read_pack(tmp_path / "a.parquet")
    assert found.schema.equals(rows.schema)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, rows.to_pylist()))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_families_that_a_pack_lacks_start_with_what_their_expressions_declare() -> None:
    rows = with_assumed(rows_of(NODES))
    assumed = [row for row in rows.to_pylist() if row["assumed"]]
    assert {row["family"] for row in assumed} == set(FAMILIES) - {"prefill_attention"}
    stated = {(row["family"], row["coefficient"]): row["value"] for row in assumed}
    for (family, name), value in stated.items():
        one = next(one for one in FAMILIES[family].latency_model.coefficients if one.name == name)
        assert (value, one.owner != "fixed") == (one.start, True)
    assert rows.num_rows == len(NODES) + sum(
        len(assumed_rows(name, family.latency_model.coefficients))
        for name, family in FAMILIES.items()
        if name != "prefill_attention"
    )


def test_files_that_are_no_packs(tmp_path: Path) -> None:
    path = tmp_path / "pack.parquet"
    with pytest.raises(
        InvalidInput, match=r"pack .*pack\.parquet does not exist; `kernelsight calibrate fit -o .*` writes one"
    ):
        read_pack(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InvalidInput, match=r"pack\.parquet cannot be read as Parquet \(.+\); `kernelsight"):
        read_pack(path)
    pq.write_table(pa.table({"family": ["gemm"]}), path)
    with pytest.raises(ContractBroken, match=r"missing columns? part, level"):
        read_pack(path)


def test_points_of_a_former_form_are_refused_in_one_sentence(tmp_path: Path) -> None:
    named = {"family": "gemm", "part": "points", "level": "gpu", "gpu": "l4", "source": "a test"}
    kernel = {"engine": "vllm", "implementation": "cublas", "dtype": "bf16"}
    former = [{**named, "coefficient": "shared", "array": [0.0]}]
    former += [{**named, **kernel, "coefficient": name, "array": [1.0]} for name in ("features", "log_us", "weights")]
    path = tmp_path / "former.parquet"
    write_pack(pack_table(former), path)
    with pytest.raises(InvalidInput) as refusal:
        read_pack(path)
    assert str(refusal.value) == (
        f"pack {path} holds points of l4 as an earlier version fitted them (arrays log_us, shared), and this one reads "
        "features and weights; fit the measured calls again: `kernelsight calibrate fit --few FILE --onto default "
        f"-o {path}`."
    )
    now = [row for row in former if row["coefficient"] in ("features", "weights")]
    write_pack(pack_table(now), path)
    assert read_pack(path).num_rows == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"part": "guess"}, r"column part: 1 row fails"),
        ({"value": float("nan")}, r"column value has NaN or infinity"),
        ({"coefficient": None}, r"column coefficient must not be null"),
    ],
)
def test_rows_that_are_no_numbers_of_the_model_are_refused(change: dict, words: str) -> None:
    row = {
        "family": "gemm",
        "part": "constant",
        "level": "family",
        "coefficient": "x",
        "value": 1.0,
        "source": "a test",
    }
    with pytest.raises(ContractBroken, match=words):
        pack_table([{**row, **change}])


def test_one_number_twice_is_refused() -> None:
    with pytest.raises(ContractBroken, match="1 duplicate key"):
        rows_of([NODES[0], NODES[0]])
