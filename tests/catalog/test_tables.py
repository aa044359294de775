"""The embedded facts: every file that the package brings keeps its contract, and a bad one is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelsight.catalog.tables import contracts, fact_names, read_facts
from kernelsight.dataflow.contract import Column, Contract
from kernelsight.errors import ContractBroken
from kernelsight.project_graph import embedded_facts

PARTS = Contract(
    "parts",
    "given",
    "one part",
    "Parts.",
    (Column("part", "string", "name", key=True), Column("size", "int64", "edge", nullable=True)),
)


def test_every_embedded_table_reads_and_its_references_hold() -> None:
    every = embedded_facts()
    assert {"gpus", "fabrics", "models", "model_layers", "eta_coefficients"} <= set(every) and fact_names() < set(every)
    for name, read in every.items():
        table = read()
        assert table.num_rows > 0 or name in ("log_corrections", "kv_tiers")  # none ship
        for column in contracts()[name].columns:
            other, _, key = column.reference.partition(".")
            if other in every:
                values = set(table.column(column.name).to_pylist()) - {None}
                assert values <= set(every[other]().column(key).to_pylist()), (name, column.name)


def test_an_empty_field_is_null(tmp_path: Path) -> None:
    (tmp_path / "parts.csv").write_text('part,size\nbolt,\n"nut, hex",4\n')
    assert read_facts(tmp_path / "parts.csv", PARTS).to_pylist() == [
        {"part": "bolt", "size": None},
        {"part": "nut, hex", "size": 4},
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("part,size\nbolt,big\n", "parts.csv cannot be read as table 'parts': "),
        ("part,size\nbolt,1\nbolt,2\n", "table 'parts' (from parts.csv) violates its contract: 1 duplicate key"),
        ("part,sise\n,1\n", "column sise (nearest: size); column part must not be null, but is in 1 row"),
        ("", "parts.csv cannot be read as table 'parts': Empty CSV file"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "parts.csv").write_text(text)
    with pytest.raises(ContractBroken) as refusal:
        read_facts(tmp_path / "parts.csv", PARTS)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)
