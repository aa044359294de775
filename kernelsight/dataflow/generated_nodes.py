"""Nodes and contracts generated for each member of a group, such as every kernel family, from one declaration.

A group is a word and its members. The name ``<word>_<rest>`` stands for the table ``<member>_<rest>`` of each member:
in a contract, in a function marked ``for_each`` with its parameters, and in a query, which then reads the union of the
members' rows. Functions are read from source, so that drawing the graph imports nothing heavy.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelsight.dataflow.contract import Contract
from kernelsight.dataflow.python_nodes import PythonNode, decorated

# word: member: description of the member, which replaces {word} in a table's description
Groups = Mapping[str, Mapping[str, str]]


def for_each(word: str) -> Callable[[Callable], Callable]:
    """Mark a function as the node of one table per member of a group; ``word`` is its keyword parameter.

    >>> @for_each("family")
    ... def family_latencies(family_calls, gpus, *, family): ...
    >>> family_latencies.for_each
    'family'
    """

    def mark(function: Callable) -> Callable:
        function.for_each = word
        return function

    return mark


@dataclass(frozen=True)
class GeneratedNode(PythonNode):
    """The node of one member, by a function marked ``for_each``; ``takes``: pairs of this member's table, parameter."""

    template: str = ""
    word: str = ""
    member: str = ""
    takes: tuple[tuple[str, str], ...] = ()

    def load(self) -> Callable[..., Any]:
        """Import the module and return the function, which then takes this member's tables by name."""
        function = getattr(importlib.import_module(self.module), self.template)
        return lambda **tables: function(
            **{parameter: tables[table] for table, parameter in self.takes}, **{self.word: self.member}
        )


def generated_nodes(
    module: str, path: Path, functions: Iterable[ast.FunctionDef], groups: Groups
) -> list[GeneratedNode]:
    """Return the nodes of a module's functions marked ``for_each``, one per member."""
    return [
        _member_node(module, path, function, word, member, groups)
        for function in functions
        for word in decorated(function, "for_each")
        for member in groups.get(word, ())
    ]


def _member_node(
    module: str, path: Path, function: ast.FunctionDef, word: str, member: str, groups: Groups
) -> GeneratedNode:
    table = function.name
    parameters = [argument.arg for argument in function.args.args]
    inputs = [_member_table(parameter, word, member) for parameter in parameters]
    doc = (ast.get_docstring(function) or "").partition("\n")[0].strip()
    return GeneratedNode(
        module=module,
        function=f"{function.name}[{member}]",
        makes=(_member_table(table, word, member),),
        inputs=tuple(inputs),
        doc=_member_doc(doc, word, groups[word][member]),
        path=path,
        template=function.name,
        word=word,
        member=member,
        takes=tuple(zip(inputs, parameters, strict=True)),
    )


def member_contracts(contracts: Mapping[str, Contract], groups: Groups) -> dict[str, Contract]:
    """Return the contracts by table, with each ``<word>_<rest>`` replaced by one contract per member.

    >>> contract = Contract("family_costs", "derived", "one kernel", "Costs of {family}.", ())
    >>> member_contracts({"family_costs": contract}, {"family": {"gemm": "matrix products"}})["gemm_costs"].doc
    'Costs of matrix products.'
    """
    by_table = {}
    for name, contract in contracts.items():
        word = next((word for word in groups if name.startswith(f"{word}_")), None)
        if word is None:
            by_table[name] = contract
        else:
            for member, description in groups[word].items():
                table = _member_table(name, word, member)
                by_table[table] = replace(contract, table=table, doc=_member_doc(contract.doc, word, description))
    return by_table


def members_of(names: Iterable[str], groups: Groups) -> list[str]:
    """Return table names, with each ``<word>_<rest>`` replaced by the tables of all members.

    >>> members_of(["gpus", "family_calls"], {"family": {"gemm": "", "norm": ""}})
    ['gpus', 'gemm_calls', 'norm_calls']
    """
    expanded = []
    for name in names:
        word = next((word for word in groups if name.startswith(f"{word}_")), None)
        expanded += [name] if word is None else [_member_table(name, word, member) for member in groups[word]]
    return expanded


def union_of(name: str, contracts: Mapping[str, Contract], groups: Groups) -> str | None:
    """Return the UNION ALL that a table ``<word>_<rest>`` stands for: the members' rows, with a column ``<word>``.

    None for any other name, and where no member has such a table.

    >>> contracts = {name: Contract(name, "derived", "one", "Some.", ()) for name in ("gemm_calls", "norm_calls")}
    >>> print(union_of("family_calls", contracts, {"family": {"gemm": "", "norm": ""}}))
    select 'gemm' as family, * from gemm_calls
    union all by name
    select 'norm' as family, * from norm_calls
    """
    word = next((word for word in groups if name.startswith(f"{word}_")), None)
    if word is None or name in contracts:
        return None
    selects = []
    for member in groups[word]:
        table = _member_table(name, word, member)
        if table in contracts:
            member_column = "" if word in contracts[table].column_names else f"'{member}' as {word}, "
            selects.append(f"select {member_column}* from {table}")
    return "\nunion all by name\n".join(selects) or None


def _member_table(name: str, word: str, member: str) -> str:
    return member + name.removeprefix(word) if name.startswith(f"{word}_") else name


def _member_doc(doc: str, word: str, description: str) -> str:
    return doc.replace(f"{{{word}}}", description)
