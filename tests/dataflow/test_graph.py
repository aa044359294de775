"""The graph: what would run, in which order, how it is drawn, and its refusals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from textwrap import dedent

import pytest

from kernelsight.dataflow.graph import Graph
from kernelsight.errors import InvalidInput, MissingTable, UnknownName

Flow = Callable[..., Graph]
GIVEN = {"items", "orders"}


def names(graph: Graph, *wanted: str, available: set[str] = GIVEN) -> list[str]:
    return [node.names[0] for node in graph.plan(wanted, available)]


def test_only_what_is_needed_runs_and_inputs_come_first(flow: Flow) -> None:
    graph = flow("good", "flow_nodes")
    assert names(graph, "order_totals") == ["order_totals"]
    assert names(graph, "report") == ["order_totals", "item_totals", "best_item", "report"]
    assert names(graph, "worst_item") == ["order_totals", "item_totals", "best_item"]
    assert names(graph, "report", available={"item_totals"}) == ["best_item", "report"]
    assert names(graph, "items") == []


def test_the_graph_is_drawn_without_importing_the_python_nodes(flow: Flow) -> None:
    graph = flow("good", "flow_nodes")
    graph.explain(["report"], GIVEN)
    assert "flow_nodes" not in sys.modules
    node = graph.node("worst_item")
    assert node is not None and node.inputs == ("item_totals",) and node.doc == "The items at both ends."
    assert node.function.__name__ == "extremes" and "flow_nodes" in sys.modules


def test_only_the_files_that_are_asked_for_are_parsed(flow: Flow) -> None:
    graph = flow("cycle")
    assert graph.node("best_item") is None
    assert names(graph, "order_totals", available={"order_totals"}) == []


def test_a_loop_is_shown_from_its_first_name(flow: Flow) -> None:
    for wanted in ("order_totals", "item_totals"):
        with pytest.raises(InvalidInput) as refusal:
            flow("cycle").plan([wanted], GIVEN)
        assert str(refusal.value) == "circular dependency between tables: item_totals → order_totals → item_totals."


def test_an_unknown_table_gets_the_nearest_names(flow: Flow) -> None:
    with pytest.raises(UnknownName, match="unknown table 'order_total'. Did you mean order_totals"):
        flow("good").plan(["order_total"])
    with pytest.raises(
        UnknownName, match=r"unknown table 'ordered'. Did you mean orders.*unknown_table/order_totals.sql"
    ):
        flow("unknown_table").plan(["order_totals"], GIVEN)


def test_a_given_table_that_nobody_gave_is_named_with_who_needs_it(flow: Flow) -> None:
    with pytest.raises(MissingTable) as refusal:
        flow("good").plan(["forecast"], GIVEN)
    assert str(refusal.value) == "missing input table 'weather' (needed by 'forecast')."
    with pytest.raises(MissingTable, match="missing input table 'weather'."):
        flow("good").plan(["weather"])
    with pytest.raises(MissingTable, match="orphan.*no node computes it"):
        flow("good").plan(["orphan"])


def test_a_table_that_no_contract_declares_is_refused(flow: Flow) -> None:
    with pytest.raises(UnknownName, match="unknown table 'colours'.*schemas/colours.json does not exist"):
        flow("uncontracted").validate()


def test_a_function_with_a_default_is_no_node(flow: Flow) -> None:
    with pytest.raises(InvalidInput, match="knob_nodes.py: best_item cannot be a node of the graph: its parameters"):
        flow("good", "knob_nodes").plan(["best_item"], GIVEN)


def test_validation_finds_a_derived_table_that_no_node_makes(flow: Flow) -> None:
    graph = flow("good", "flow_nodes")
    with pytest.raises(InvalidInput, match="orphan is declared as derived, but no node computes it"):
        graph.validate()
    graph.validate(provided={"orphan"})


def test_what_depends_on_a_table_is_known_through_several_nodes_and_stops_at_what_was_given(flow: Flow) -> None:
    graph = flow("good", "flow_nodes")
    assert graph.depends("report", "orders") and graph.depends("item_totals", "items")
    assert not graph.depends("order_totals", "item_totals") and not graph.depends("orders", "items")
    assert not graph.depends("report", "orders", fixed={"item_totals"})


def test_explain_as_text(flow: Flow) -> None:
    assert flow("good").explain(["item_totals"], {"items"}) == dedent("""\
        item_totals: 2 steps
        missing   orders
        available items

        good
           1  order_totals
              sql: what each order costs
              from items, orders
           2  item_totals
              sql: what each item earned
              from order_totals""")
    assert flow("good").explain(["items"], {"items"}) == "items: available, nothing to run."


def test_explain_as_mermaid(flow: Flow) -> None:
    assert flow("good", "flow_nodes").explain(["best_item"], {"order_totals"}, "mermaid") == dedent("""\
        flowchart LR
            order_totals[("order_totals")]
            item_totals["item_totals<br>sql"]
            order_totals --> item_totals
            best_item["best_item<br>python"]
            item_totals --> best_item
            worst_item["worst_item<br>python"]
            item_totals --> worst_item""")
    with pytest.raises(UnknownName, match="unknown format 'mermad'. Did you mean mermaid"):
        flow("good").explain(["items"], format="mermad")
