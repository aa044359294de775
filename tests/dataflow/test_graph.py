"""The graph: what would run, in which order, how it is drawn, and its refusals."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from textwrap import dedent

import pytest

from kernelsight.catalog.tables import fact_names
from kernelsight.dataflow.graph import Graph
from kernelsight.dataflow.locations import folder
from kernelsight.dataflow.python_nodes import decorated, sources_with_nodes
from kernelsight.errors import MissingTable, UnknownName
from kernelsight.project_graph import project_graph

Flow = Callable[..., Graph]
GIVEN = {"items", "orders"}
SERVICES = {"tables", "wanted", "read", "threads", "fork", "report"}


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


def test_an_unknown_table_gets_the_nearest_names(flow: Flow) -> None:
    with pytest.raises(UnknownName, match="unknown table 'order_total'. Did you mean order_totals"):
        flow("good").plan(["order_total"])


def test_a_given_table_that_nobody_gave_is_named_with_who_needs_it(flow: Flow) -> None:
    with pytest.raises(MissingTable) as refusal:
        flow("good").plan(["forecast"], GIVEN)
    assert str(refusal.value) == "missing input table 'weather' (needed by 'forecast')."
    with pytest.raises(MissingTable, match="missing input table 'weather'."):
        flow("good").plan(["weather"])
    with pytest.raises(MissingTable, match="orphan.*no node computes it"):
        flow("good").plan(["orphan"])


def test_the_projects_nodes_take_tables_and_make_each_derived_table_once() -> None:
    graph = project_graph()
    nodes = {node.label: node for node in graph.nodes().values() if node}
    made = [name for node in nodes.values() for name in node.names]
    named = {name for node in nodes.values() for name in (*node.names, *node.inputs, *node.fetches)}
    assert len(made) == len(set(made)) and named <= set(graph.contracts)
    given = {*fact_names(), *(name for name, contract in graph.contracts.items() if contract.kind == "given")}
    derived = graph.contracts.keys() - given
    assert derived == {*made, "catalogue_tables", "catalogue_columns"}, "the session gives the catalogue of tables"
    assert len(graph.needed(made)[0]) == len(nodes), "an order exists: no circles"
    assert [label for label, node in nodes.items() if not node.doc] == []


def test_the_projects_functions_take_tables_and_services_without_defaults() -> None:
    made = [path.stem for path in folder("sql").rglob("*.sql")]
    for module, _, functions in sources_with_nodes("kernelsight"):
        for function in functions:
            word, given = decorated(function, "for_each"), function.args
            makes = (function.name,) if word else decorated(function, "produces")
            made += makes
            if makes:
                stars = (given.vararg, given.kwarg, given.posonlyargs, given.defaults, any(given.kw_defaults))
                assert stars == (None, None, [], [], False), (module, function.name)
                keywords = [argument.arg for argument in given.kwonlyargs]
                assert keywords == list(word) if word else {*keywords} <= SERVICES, (module, function.name)
                assert not word or function.name.startswith(f"{word[0]}_"), (module, function.name)
    assert [name for name, makers in Counter(made).items() if makers > 1] == []


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
