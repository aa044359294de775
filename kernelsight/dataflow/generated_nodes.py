"""Tables that exist once for each member of a group, such as every kernel family, from one statement.

A group is a word and its members. What is named ``<word>_<rest>`` stands for the table ``<member>_<rest>`` of each
member: a contract, the function marked ``for_each`` with its parameters, and a table of a query, which then reads the
rows of all members. The statements are read from source, so that drawing the graph imports nothing heavy.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelsight.dataflow.contract import Contract
from kernelsight.dataflow.python_nodes import PythonNode
from kernelsight.errors import InvalidInput

# word: member: what the member is, in words that descriptions take for {word}
Groups = Mapping[str, Mapping[str, str]]


def for_each(word: str) -> Callable[[Callable], Callable]:
    """Mark a private function as the maker of one table for each member of a group; ``word`` is its keyword parameter.

    >>> @for_each("family")
    ... def _family_latencies(family_calls, gpus, *, family): ...
    >>> _family_latencies.for_each
    'family'
    """

    def mark(function: Callable) -> Callable:
        function.for_each = word
        return function

    return mark


@dataclass(frozen=True)
class GeneratedNode(PythonNode):
    """One member's node of a marked function; ``takes``: parameters by the table that each is of this member."""

    template: str = ""
    word: str = ""
    member: str = ""
    takes: tuple[tuple[str, str], ...] = ()

    def load(self) -> Callable[..., Any]:
        """Import the module and return the function of this member's tables."""
        function = getattr(importlib.import_module(self.module), self.template)
        return lambda **tables: function(
            **{parameter: tables[table] for table, parameter in self.takes}, **{self.word: self.member}
        )


def generated_nodes(module: str, groups: Groups) -> list[GeneratedNode]:
    """Return the nodes of every function of a module that is marked ``for_each``, read from its source."""
    spec = importlib.util.find_spec(module) if groups else None
    if spec is None or not spec.origin:
        return []
    path = Path(spec.origin)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    nodes = []
    for function in (item for item in tree.body if isinstance(item, ast.FunctionDef)):
        word = _marked(function)
        if word is not None:
            nodes += [_member_node(module, path, function, word, member, groups) for member in groups.get(word, ())]
    return nodes


def _marked(function: ast.FunctionDef) -> str | None:
    """Return the word of a ``for_each`` decorator."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "for_each":
            return ast.literal_eval(decorator.args[0])
    return None


def _member_node(
    module: str, path: Path, function: ast.FunctionDef, word: str, member: str, groups: Groups
) -> GeneratedNode:
    made = function.name.removeprefix("_")
    parameters = [argument.arg for argument in function.args.args]
    if [argument.arg for argument in function.args.kwonlyargs] != [word] or not made.startswith(f"{word}_"):
        raise InvalidInput(
            f"{path.name}: {function.name} cannot make a table of each {word}: name it _{word}_<rest>, and let it take "
            f"tables and, as its one keyword-only parameter, {word}."
        )
    inputs = [_of_member(parameter, word, member) for parameter in parameters]
    doc = (ast.get_docstring(function) or "").partition("\n")[0].strip()
    return GeneratedNode(
        module=module,
        function=f"{function.name}[{member}]",
        makes=(_of_member(made, word, member),),
        inputs=tuple(inputs),
        doc=_described(doc, word, groups[word][member]),
        path=path,
        template=function.name,
        word=word,
        member=member,
        takes=tuple(zip(inputs, parameters, strict=True)),
    )


def member_contracts(contracts: Mapping[str, Contract], groups: Groups) -> dict[str, Contract]:
    """Return the contracts, those named ``<word>_<rest>`` replaced by one of each member.

    >>> stated = Contract("family_costs", "derived", "one kernel", "Costs of {family}.", ())
    >>> member_contracts({"family_costs": stated}, {"family": {"gemm": "matrix products"}})["gemm_costs"].doc
    'Costs of matrix products.'
    """
    by_table = {}
    for name, contract in contracts.items():
        word = next((word for word in groups if name.startswith(f"{word}_")), None)
        if word is None:
            by_table[name] = contract
        else:
            for member, described in groups[word].items():
                table = _of_member(name, word, member)
                by_table[table] = replace(contract, table=table, doc=_described(contract.doc, word, described))
    return by_table


def members_of(names: Iterable[str], groups: Groups) -> list[str]:
    """Return table names, each ``<word>_<rest>`` replaced by those of every member.

    >>> members_of(["gpus", "family_calls"], {"family": {"gemm": "", "norm": ""}})
    ['gpus', 'gemm_calls', 'norm_calls']
    """
    names_of_members = []
    for name in names:
        word = next((word for word in groups if name.startswith(f"{word}_")), None)
        names_of_members += [name] if word is None else [_of_member(name, word, member) for member in groups[word]]
    return names_of_members


def union_of(name: str, contracts: Mapping[str, Contract], groups: Groups) -> str | None:
    """Return the query that a table ``<word>_<rest>`` stands for: the rows of every member, with a column ``<word>``.

    None where it stands for nothing: no member has such a table.

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
        table = _of_member(name, word, member)
        if table in contracts:
            member_column = "" if word in contracts[table].column_names else f"'{member}' as {word}, "
            selects.append(f"select {member_column}* from {table}")
    return "\nunion all by name\n".join(selects) or None


def _of_member(name: str, word: str, member: str) -> str:
    return member + name.removeprefix(word) if name.startswith(f"{word}_") else name


def _described(doc: str, word: str, described: str) -> str:
    return doc.replace(f"{{{word}}}", described)
