"""Answers that tests keep are those that a session computes: of other settings, and under another deployment's name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight.caches.memory_cache import LruCache
from kernelsight.dataflow.graph import Node
from kernelsight.session import connect
from tests.conftest import QUERIES

DEPLOYMENT = {"model": "qwen3-0.6b", "gpu": "l4", "tp": 1, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm"}
OTHERS = ({}, {"max_num_seqs": 8}, {"max_num_batched_tokens": 512}, {"tp": 2}, {"gpu": "h100_sxm"})
TABLES = ("deployment_settings", "sharded_layers", "layer_weights", "kv_layout", "memory_plan", "deployment_faults",
          "assumptions", "deployment_tiers", "host_settings")  # fmt: skip


def made(name: str, settings: dict[str, object]) -> dict[str, list[str]]:
    """Return the rows of tables of a deployment, in any order."""
    with connect() as session:
        session.give("deployments", [{"deployment_id": name, **DEPLOYMENT, **settings}])
        return {table: sorted(map(repr, session.table(table).to_pylist())) for table in TABLES}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What other tests and runs asked is not known here."""
    monkeypatch.setattr(QUERIES, "_answers", LruCache(4000))
    monkeypatch.setattr(QUERIES, "folder", tmp_path)


def test_kept_answers_are_those_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: made(name, settings) for name, settings in zip("abcde", OTHERS, strict=True)}
    monkeypatch.setattr(QUERIES, "anew", True)
    # of all deployments in one session
    with connect() as session:
        rows = [{"deployment_id": name, **DEPLOYMENT, **other} for name, other in zip("abcde", OTHERS, strict=True)]
        session.give("deployments", rows)
        for table in TABLES:
            rows = session.table(table).to_pylist()
            assert {row["deployment_id"] for row in rows} <= set(kept)
            for name, own in kept.items():
                assert own[table] == sorted(repr(row) for row in rows if row["deployment_id"] == name), table


def test_a_column_that_a_table_gains_is_read(tmp_path: Path) -> None:
    node = Node(("t",), "sql", ("given",), "", tmp_path, "select * from given")
    with connect() as session:
        for columns in ({"a": [1]}, {"a": [1], "b": [2]}):
            session._tables["given"] = pa.table(columns)
            assert QUERIES.answer(session, node)["t"].column_names == list(columns)
