"""The summary of a scenario on a deployment that is known: no query runs, and moved step costs are laid out once."""

from __future__ import annotations

import pytest

from kernelsight.caches import disk_cache
from kernelsight.dataflow import databases
from kernelsight.serving.runs import interval_ends
from kernelsight.session import connect

LOAD = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 12, "input_len": 64, "output_len": 8}


def test_another_load_on_a_known_deployment_asks_no_database(tmp_path, monkeypatch):
    (tmp_path / "named").mkdir(mode=0o700)
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "named"))
    laid_out, cost_tables = [], interval_ends.cost_tables
    monkeypatch.setattr(interval_ends, "cost_tables", lambda *given: laid_out.append(1) or cost_tables(*given))
    with connect() as session:
        first = session.simulate(**LOAD, request_rate=2.0).summary
        assert session.simulate(**LOAD, request_rate=2.5).summary  # takes the cached tables for the first time
        assert laid_out
        laid_out.clear()
    monkeypatch.setattr(databases, "open_database", lambda *_: pytest.fail("a database was opened"))
    with connect() as session:
        again = session.simulate(**LOAD, request_rate=3.0).summary
        assert again["interval_90"] and again["breakdown"] and again["verdict"]
        assert session.simulate(**LOAD, request_rate=2.0).summary == first
    assert not laid_out
