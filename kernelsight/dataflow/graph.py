"""The dependency graph (DAG) of nodes: which node makes a table, from which inputs, in which order, and as a chart."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from kernelsight.dataflow.contract import Contract
from kernelsight.dataflow.databases import read_macros
from kernelsight.dataflow.generated_nodes import Groups, generated_nodes, member_contracts, members_of, union_of
from kernelsight.dataflow.graph_text import mermaid, tree
from kernelsight.dataflow.python_nodes import PythonNode, python_nodes, sources_with_nodes, steps_inside
from kernelsight.dataflow.sql_nodes import read_sql_node, sql_files
from kernelsight.errors import missing_table, unknown


@dataclass(frozen=True)
class Node:
    """A node of the graph, which makes one table (or several): a SQL query, or a Python function of tables.

    ``inputs``: tables computed before it runs; ``fetches``: tables of which it reads what it needs while it runs;
    ``steps``: the functions inside of it that are shown on request, in an order in which they can run.
    """

    names: tuple[str, ...]
    kind: str
    inputs: tuple[str, ...]
    doc: str
    path: Path
    text: str = ""
    source: PythonNode | None = None
    fetches: tuple[str, ...] = ()
    steps: tuple[Node, ...] = ()

    @property
    def services(self) -> tuple[str, ...]:
        """The session's services that a Python node takes beside tables: wanted, read, threads, fork, report."""
        return self.source.services if self.source else ()

    @property
    def function(self) -> Callable[..., Any]:
        """The Python node's function; its module is imported now."""
        assert self.source is not None
        return self.source.load()

    @property
    def stage(self) -> str:
        """The folder of a query, and the room of a function: the folder of its package that holds its module."""
        parts = self.source.module.split(".")[1:-1] if self.source else ()
        return parts[0] if parts else self.path.parent.name

    @property
    def label(self) -> str:
        """Where the node is written, as messages name it: ``folder/table.sql`` or ``module.function``."""
        return (
            f"{self.source.module}.{self.source.function}"
            if self.source
            else f"{self.path.parent.name}/{self.path.name}"
        )


class Graph:
    """The nodes of a folder of SQL files and of Python functions, under contracts; files are read when needed.

    ``modules``: the package, or the one module, whose functions are searched for nodes; ``groups``: words whose tables
    exist once for each member, see :mod:`kernelsight.dataflow.generated_nodes`.
    """

    def __init__(
        self,
        contracts: Mapping[str, Contract],
        sql_folder: Path,
        modules: str = "",
        groups: Groups | None = None,
    ) -> None:
        self._groups = groups or {}
        self.contracts: dict[str, Contract] = member_contracts(contracts, self._groups)
        self._sql_folder = sql_folder
        self._modules = modules
        self._nodes: dict[str, Node | None] = {}
        self._roots: dict[tuple[str, frozenset[str]], tuple[str, ...]] = {}

    @cached_property
    def macros(self) -> str:
        """The CREATE MACRO statements of the macros that queries may call."""
        return read_macros(self._sql_folder)

    @cached_property
    def _files(self) -> dict[str, Path]:
        return sql_files(self._sql_folder)

    @cached_property
    def _functions(self) -> dict[str, PythonNode]:
        return {name: function for function in self._python_nodes() for name in function.makes}

    @cached_property
    def _sources(self) -> list[tuple[str, Path, list[ast.FunctionDef]]]:
        return list(sources_with_nodes(self._modules)) if self._modules else []

    def _python_nodes(self) -> Iterator[PythonNode]:
        for source in self._sources:
            yield from python_nodes(*source)
            yield from generated_nodes(*source, self._groups)

    @cached_property
    def _steps(self) -> list[tuple[str, PythonNode]]:
        return [step for source in self._sources for step in steps_inside(*source)]

    def _python_node(self, source: PythonNode) -> Node:
        waiting, steps, made = [step for name, step in self._steps if name == source.makes[0]], [], set(source.inputs)
        while ready := [step for step in waiting if made.issuperset(step.inputs)]:
            waiting.remove(ready[0])
            steps.append(_python_node(ready[0], ready[0].fetches))
            made.update(ready[0].makes)
        fetched = [*source.fetches, *(name for step in steps for name in step.fetches)]
        node = _python_node(source, dict.fromkeys(members_of(fetched, self._groups)))
        return replace(node, steps=tuple(steps))

    def nodes(self) -> dict[str, Node | None]:
        """Return the node of every table with a contract, all of them read now; None for a table that no node makes."""
        return {name: self.node(name) for name in self.contracts}

    def know(self, nodes: Mapping[str, Node | None]) -> None:
        """Take nodes that were read from the same files before, instead of reading the files again."""
        self._nodes.update(nodes)

    def node(self, table: str) -> Node | None:
        """Return the node that makes a table, or None."""
        if table not in self._nodes:
            if table in self._files:
                node = self._sql_node(table)
            elif table in self._functions:
                node = self._python_node(self._functions[table])
            else:
                return None
            self._nodes.update(dict.fromkeys(node.names, node))
        return self._nodes[table]

    def _sql_node(self, table: str) -> Node:
        path = self._files[table]
        union = partial(union_of, contracts=self.contracts, groups=self._groups)
        doc, inputs, text = read_sql_node(path, union)
        return Node((table,), "sql", inputs, doc, path, text=text)

    def known(self, table: str) -> Contract:
        """Return a table's contract; UnknownName with the nearest names where there is none."""
        if table not in self.contracts:
            raise unknown("table", table, self.contracts, "`kernelsight tables` lists them.")
        return self.contracts[table]

    def needed(self, wanted: Iterable[str], available: Collection[str] = ()) -> tuple[list[Node], dict[str, str]]:
        """Return the nodes to run for the wanted tables, in order, and the missing tables, each with one that needs it.

        A table is missing where it is neither ``available`` nor made by a node.
        """
        sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
        missing: dict[str, str] = {}
        waiting = [(self.known(name).table, name) for name in wanted]
        seen = set(available)
        while waiting:
            table, needed_by = waiting.pop(0)
            if table in seen:
                continue
            seen.add(table)
            node = self.node(table)
            if node is None:
                missing[table] = needed_by
                continue
            first = node.names[0]
            inputs = [name for name in node.inputs if name not in available]
            # a node of several tables is in the order once, under the name of its first
            sorter.add(first, *(self._first_name(name) for name in inputs if self.node(name)))
            waiting += [(name, table) for name in inputs]
        return [node for name in sorter.static_order() if (node := self.node(name))], missing

    def _first_name(self, table: str) -> str:
        node = self.node(table)
        return node.names[0] if node else table

    def plan(self, wanted: Iterable[str], available: Collection[str] = ()) -> list[Node]:
        """Return the nodes that make the wanted tables from the available ones, in order.

        UnknownName: no such table. MissingTable: a required input table is missing.
        """
        nodes, missing = self.needed(wanted, available)
        for table, needed_by in missing.items():
            hint = "" if self.contracts[table].kind == "given" else "no node computes it"
            raise missing_table(table, needed_by, hint)
        return nodes

    def by_reference(self, names: Iterable[str]) -> list[str]:
        """Return tables in topological order: each comes after the tables that its columns reference."""
        wanted = sorted(names)
        references = {
            name: {column.reference.partition(".")[0] for column in self.contracts[name].columns} & set(wanted) - {name}
            if name in self.contracts
            else set()
            for name in wanted
        }
        return list(graphlib.TopologicalSorter(references).static_order())

    def roots(self, table: str, fixed: frozenset[str]) -> tuple[str, ...]:
        """Return the tables that a table is ultimately computed from: ``fixed`` ones, and those that no node makes."""
        if (table, fixed) not in self._roots:
            roots, waiting, seen = [], [table], set()
            while waiting:
                name = waiting.pop()
                if name in seen:
                    continue
                seen.add(name)
                node = None if name in fixed else self.node(name)
                if node is None:
                    roots.append(name)
                else:
                    waiting += (*node.inputs, *node.fetches)
            self._roots[table, fixed] = tuple(roots)
        return self._roots[table, fixed]

    def depends(self, table: str, upon: str, fixed: Collection[str] = ()) -> bool:
        """Return whether ``table`` is computed from ``upon``, the ``fixed`` tables counting as inputs."""
        waiting, seen = [table], set(fixed) - {table}
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.node(name) if name in self.contracts else None
            if node and upon in (*node.inputs, *node.fetches):
                return True
            waiting += (*node.inputs, *node.fetches) if node else ()
        return False

    def explain(
        self, wanted: Iterable[str], available: Collection[str] = (), format: str = "text", opened: bool = False
    ) -> str:
        """Return what would run for the wanted tables, as "text" or as a "mermaid" flow chart.

        ``opened``: the chart shows the steps of a node in its place; the text shows below what runs inside of nodes
        that compute tables for rows of their own.
        """
        wanted = list(wanted)
        nodes, missing = self.needed(wanted, available)
        if format == "mermaid":
            return mermaid(steps_of(nodes) if opened else nodes, missing)
        if format != "text":
            raise unknown("format", format, ["text", "mermaid"])
        if not nodes and not missing:
            return f"{', '.join(wanted)}: available, nothing to run."
        lines = tree(nodes, missing, ", ".join(wanted))
        for node in nodes if opened else ():
            if node.steps:
                lines += ["", *tree(node.steps, (), f"inside {node.names[0]}")]
            if "fork" in node.services and node.fetches:
                inside, given = self.needed(node.fetches, available)
                lines += ["", *tree(inside, given, f"inside {node.names[0]}, which gives what is missing")]
        return "\n".join(lines)


def _python_node(source: PythonNode, fetches: Iterable[str]) -> Node:
    made, inputs, doc = source.makes, source.inputs, source.doc
    return Node(made, "python", inputs, doc, source.path, source=source, fetches=tuple(fetches))


def steps_of(nodes: Iterable[Node]) -> list[Node]:
    """Return nodes, each that has steps replaced by these."""
    return [step for node in nodes for step in node.steps or (node,)]
