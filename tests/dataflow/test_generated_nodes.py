"""One statement for every member of a group: contracts, functions and the union that a query reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight.dataflow.contract import Column, Contract
from kernelsight.dataflow.graph import Graph
from kernelsight.dataflow.session import Session

GROUPS = {"fruit": {"apple": "red fruit", "pear": "green fruit"}}
WEIGHT, PRICE = Column("kg", "float64", "a weight"), Column("euros", "float64", "a price")
NODES = '''
import pyarrow.compute as pc

from kernelsight.dataflow.generated_nodes import for_each

@for_each("fruit")
def fruit_costs(fruit_sales, prices, *, fruit):
    """Costs of {fruit}."""
    each = dict(prices.to_pylist()[0])[fruit]
    return fruit_sales.append_column("euros", pc.multiply(fruit_sales["kg"], each))
'''
QUERY = "-- every cost\nselect fruit, kg, euros from fruit_costs join fruit_sales using (fruit, kg)"


def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str = NODES, query: str = QUERY) -> Graph:
    """Return the graph of a little market: sales of each fruit are given, their costs computed, all costs joined."""
    folder = tmp_path / "sql"
    folder.mkdir()
    (folder / "costs.sql").write_text(query)
    (tmp_path / "market_nodes.py").write_text(nodes)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "market_nodes", raising=False)
    prices = (Column("apple", "float64", "a price"), Column("pear", "float64", "a price"))
    fruit = Column("fruit", "string", "a fruit")
    stated = (
        Contract("prices", "given", "all", "Prices.", prices),
        Contract("fruit_sales", "given", "one sale", "Sales of {fruit}.", (WEIGHT,)),
        Contract("fruit_costs", "derived", "one sale", "Costs of {fruit}.", (WEIGHT, PRICE)),
        Contract("costs", "derived", "one sale", "All costs.", (fruit, WEIGHT, PRICE)),
    )
    return Graph({one.table: one for one in stated}, folder, "market_nodes", GROUPS)


def test_each_member_has_its_tables_and_a_query_reads_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    market = graph(tmp_path, monkeypatch)
    assert set(market.contracts) == {"prices", "apple_sales", "pear_sales", "apple_costs", "pear_costs", "costs"}
    assert market.contracts["pear_sales"].doc == "Sales of green fruit."
    node = market.node("apple_costs")
    assert (node.names, node.inputs, node.doc) == (("apple_costs",), ("apple_sales", "prices"), "Costs of red fruit.")
    assert node.label == "market_nodes.fruit_costs[apple]"
    assert market.node("costs").inputs == ("apple_costs", "apple_sales", "pear_costs", "pear_sales")
    assert "market_nodes" not in sys.modules
    with Session(market) as session:
        session.give("prices", pa.table({"apple": [2.0], "pear": [3.0]}))
        session.give("apple_sales", pa.table({"kg": [1.0, 5.0]}))
        session.give("pear_sales", pa.table({"kg": [1.0]}))
        rows = sorted(tuple(row.values()) for row in session.table("costs").to_pylist())
        # one column alone: its query stands inside another
        kilos = session.fork()
        kilos.give("apple_sales", pa.table({"kg": [7.0]}))
        assert sorted(kilos.table("costs")["kg"].to_pylist()) == [1.0, 7.0]
    assert rows == [("apple", 1.0, 2.0), ("apple", 5.0, 10.0), ("pear", 1.0, 3.0)]


def test_a_column_that_names_the_member_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    market = graph(tmp_path, monkeypatch, query="-- every sale\nselect fruit, kg, 0.0 as euros from fruit_sales")
    named = Contract("apple_sales", "given", "one", "Some.", (Column("fruit", "string", "its name"), WEIGHT))
    market.contracts["apple_sales"] = named
    with Session(market) as session:
        session.give("apple_sales", pa.table({"fruit": ["russet"], "kg": [1.0]}))
        session.give("pear_sales", pa.table({"kg": [2.0]}))
        assert session.table("costs")["fruit"].to_pylist() == ["russet", "pear"]
