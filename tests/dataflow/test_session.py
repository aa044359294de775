"""Queries of nodes are answered from the cache over the same values, whatever their deployment is called."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight import connect
from kernelsight.dataflow.graph import Node
from kernelsight.dataflow.node_runs import NodeRuns

TABLES = ("deployment_settings", "sharded_layers", "layer_weights", "memory_plan", "assumptions")


def tables_of(monkeypatch: pytest.MonkeyPatch, folder: str, **flags: object) -> tuple[list[pa.Table], set[str]]:
    """Return TABLES of a deployment, cached in a folder ("": nowhere), and the tables whose queries DuckDB ran."""
    monkeypatch.setenv("KERNELSIGHT_CACHE", folder)
    asked: set[str] = set()
    run = NodeRuns._ask

    def ask(session: NodeRuns, node: Node, read: dict[str, pa.Table]) -> pa.Table:
        asked.add(node.names[0])
        return run(session, node, read)

    with monkeypatch.context() as patch, connect() as session:
        patch.setattr(NodeRuns, "_ask", ask)
        row = {"deployment_id": str(flags), "model": "gpt-oss-20b", "gpu": "h100_sxm", "engine": "vllm"}
        session.give("deployments", [row | {"tp": 1, "pp": 1, "dp": 1, "ep": 1} | flags])
        return [session.table(name) for name in TABLES], asked


@pytest.mark.parametrize(
    ("changed", "still_asked", "known"),
    [
        ({"max_num_seqs": 48}, {"deployment_settings"}, {"sharded_layers", "layer_weights"}),
        ({"tp": 2}, {"deployment_settings", "sharded_layers", "layer_weights"}, {"deployment_samplers"}),
    ],
)
def test_a_query_is_asked_once_over_the_same_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, int], still_asked: set[str], known: set[str]
) -> None:
    _, before = tables_of(monkeypatch, str(tmp_path))
    cached, asked = tables_of(monkeypatch, str(tmp_path), **changed)
    anew, _ = tables_of(monkeypatch, "", **changed)
    assert still_asked <= asked and known <= before - asked
    for name, one, other in zip(TABLES, cached, anew, strict=True):
        assert one.equals(other), name
