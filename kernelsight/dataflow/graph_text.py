"""What would run for a table, for people: a tree by stage, at most WIDTH characters wide, or a Mermaid flow chart."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

WIDTH = 100


class Step(Protocol):
    """A node as it is shown; see ``kernelsight.dataflow.graph.Node``."""

    names: tuple[str, ...]
    kind: str
    inputs: tuple[str, ...]
    fetches: tuple[str, ...]
    doc: str

    @property
    def stage(self) -> str:
        """The heading that it stands under."""

    @property
    def label(self) -> str:
        """Where it is written; a function that makes a table for each member of a group has the member in brackets."""


def tree(nodes: Sequence[Step], missing: Collection[str], title: str) -> list[str]:
    """Return lines: a title, the tables that are missing and available, and the nodes by stage, numbered in order.

    Stages come in the order of their first node. Below a
    node's tables are its kind (sql or function), its description and its inputs.
    """
    made = {name for node in nodes for name in node.names}
    available = sorted({name for node in nodes for name in node.inputs} - made - set(missing))
    lines = [f"{title}: {len(nodes)} step{'s' if len(nodes) != 1 else ''}"]
    for word, names in (("missing", sorted(missing)), ("available", available)):
        lines += _wrapped(f"{word:<9} ", ", ".join(names), 10) if names else []
    stages: dict[str, dict[str, list[tuple[int, Step]]]] = {}
    for position, node in enumerate(nodes, start=1):
        stage = stages.setdefault(node.stage, {})
        stage.setdefault(node.label.partition("[")[0], []).append((position, node))
    for stage, functions in stages.items():
        lines += ["", stage]
        for members in functions.values():
            lines += _step(members)
    return lines


def _step(members: Sequence[tuple[int, Step]]) -> Iterator[str]:
    """Yield the lines of one node, or of the nodes that one function makes for the members of a group."""
    (position, first), *others = members
    names = ", ".join(name for _, node in members for name in node.names)
    common = [name for name in first.inputs if all(name in node.inputs for _, node in others)]
    more = [f"columns of {len(first.fetches)} more tables"] if first.fetches else []
    doc = first.doc
    if others:
        doc = f"one function for {len(members)} tables, the last of them at step {members[-1][0]}"
        more.append("each its own")
    inputs = ", and ".join([", ".join(common) or "nothing", *more])
    yield from _wrapped(f"{position:>4}  ", names, 6)
    yield from _wrapped("      ", f"{'sql' if first.kind == 'sql' else 'function'}: {doc}", 8)
    yield from _wrapped("      ", f"from {inputs}", 8)


def _wrapped(head: str, text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def mermaid(nodes: Sequence[Step], missing: Mapping[str, str]) -> str:
    """Return the nodes as a Mermaid flow chart; dotted arrows are tables of which a node fetches what it needs."""
    made = {name for node in nodes for name in node.names}
    lines = ["flowchart LR"]
    for name in sorted({name for node in nodes for name in node.inputs} - made | set(missing)):
        lines.append(f'    {name}[("{name}")]')
    for node in nodes:
        for name in node.names:
            lines.append(f'    {name}["{name}<br>{node.kind}"]')
            lines.extend(f"    {source} --> {name}" for source in node.inputs)
            lines.extend(f"    {source} -.-> {name}" for source in node.fetches)
    return "\n".join(lines)
