"""The reference pages of the site, made from the program when the site is built: commands, tables, Python.

A hook of MkDocs (``hooks`` of mkdocs.yml): the pages lie in no folder of the repository. The same is printed by
``kernelsight VERB --help``, ``kernelsight tables TABLE`` and Python's ``help``.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

import kernelsight as ks
from kernelsight.cli.main import parser
from kernelsight.dataflow.contract import Contract
from kernelsight.project_graph import embedded_facts

TESTS = Path(__file__).parents[2] / "tests"
# inputs of the tests of deployment files, and of logs
FORMS, LOGS = TESTS / "scenario" / "launch" / "deployments.yaml", TESTS / "logs" / "cases.yaml"
LONGEST_INPUT = 1_200  # characters of an input that are shown
# pages of tables, in order: the folders of sql/, and tables that are given or made by Python
GROUPS = {
    "given": "Given by you",
    "facts": "Facts that ship",
    "deploy": "Deployments",
    "lower": "Kernel calls",
    "kernel": "Kernel latencies and step costs",
    "serve": "Serving results",
    "sizing": "Sizing and highest rates",
    "comparison": "Comparison with logs",
    "searching": "Kernel choice and search",
    "evaluation": "Scores of kernel models and replayed runs",
    "catalogue": "The tables themselves",
}
# pages of Python nodes that do not belong to serving
NODES = {
    **dict.fromkeys(("_family_latencies", "launch_signatures", "step_costs", "step_totals"), "kernel"),
    **dict.fromkeys(("step_shapes", "deployment_reach"), "deploy"),
    **dict.fromkeys(("searches", "choice_candidates"), "searching"),
    "rates": "sizing",
}


# ---------------------------------------------------------------- reference: commands


def cli_page() -> str:
    """Return the reference page of all commands, from their parser."""
    parts = [
        "# Commands",
        "Results go to stdout, notes and progress to stderr. Exit status: 0 done, 1 the run failed, 2 the words or the "
        "input were wrong. SIGTERM and SIGHUP do what Ctrl-C does: drafts and locks are removed and workers end; the "
        "status is 128 plus the signal's number. Compiled code runs to its end first, for seconds.",
    ]
    for name, verb in verbs(parser()):
        parts += [f"## kernelsight {name}", verb.description or "", f"```text\n{usage(name, verb)}\n```"]
        for group in verb._action_groups:
            actions = [action for action in group._group_actions if action.dest != "help"]
            if actions:
                titled = actions[0].option_strings and group.title != "options"
                parts += [*([f"**{group.title}**"] if titled else []), flag_table(verb, actions)]
    return "\n\n".join(part for part in parts if part) + "\n"


def verbs(top: argparse.ArgumentParser, prefix: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield (name, parser) of every command, including those nested in ``calibrate``."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, verb in action.choices.items():
                inner = list(verbs(verb, f"{prefix}{name} "))
                yield from inner or [(f"{prefix}{name}", verb)]


def usage(name: str, verb: argparse.ArgumentParser) -> str:
    """Return a one-line synopsis: the command, its arguments and required flags."""
    words = []
    for action in verb._actions:
        value = action.metavar or action.dest.upper()
        if not action.option_strings:
            words.append(f"[{value}]" if action.nargs == "?" else value)
        elif action.required:
            words.append(f"{action.option_strings[-1]} {value}")
    return " ".join(["kernelsight", name, *words, "[flags]"])


def flag_table(verb: argparse.ArgumentParser, actions: list[argparse.Action]) -> str:
    """Return flags as a Markdown table: spelling, value, description."""
    lines = ["| flag | value | |", "|---|---|---|"]
    formatter = verb._get_formatter()
    for action in actions:
        spelled = ", ".join(f"`{word}`" for word in action.option_strings) or f"`{action.metavar or action.dest}`"
        if action.choices:
            value = ", ".join(f"`{choice}`" for choice in action.choices)
        else:
            value = f"`{action.metavar or action.dest.upper()}`" if action.nargs != 0 and action.option_strings else ""
        default = action.default if action.option_strings and action.nargs != 0 else None
        text = formatter._expand_help(action) if action.help else ""
        if default not in (None, argparse.SUPPRESS, ()) and str(default) not in text:
            text = f"{text}; default `{default}`".lstrip("; ")
        lines.append(f"| {spelled} | {value} | {cell(text)} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Return text escaped for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


# ---------------------------------------------------------------- reference: tables


def tables_pages() -> dict[str, str]:
    """Return the reference pages of all tables, one per group, from the contracts in schemas/ and their nodes."""
    with ks.connect() as session:
        rows = session.table("catalogue_tables").to_pylist()
        contracts = session.graph.contracts
    groups = {name: [row for row in rows if group_of(row) == name] for name in GROUPS}
    pages = {row["table"]: f"{name}.md" for name, members in groups.items() for row in members}
    index = [
        "# Tables",
        "A *given* table is stated by you or ships with the package; a *derived* table is computed when it is asked "
        "for. Units end the names of columns. `kernelsight tables TABLE` prints the same.",
    ]
    written = {}
    for name, members in groups.items():
        links = [f"| [`{row['table']}`](tables/{name}.md#{row['table']}) | {cell(row['doc'])} |" for row in members]
        index.append(f"## {GROUPS[name]}\n\n" + "\n".join(["| table | |", "|---|---|", *links]))
        sections = [table_section(row, contracts, rows, pages) for row in members]
        top = "All tables: [reference](../tables.md)."
        written[f"tables/{name}.md"] = "\n\n".join([f"# Tables: {GROUPS[name]}", top, *sections]) + "\n"
    return {"tables.md": "\n\n".join(index) + "\n", **written}


def group_of(row: dict[str, Any]) -> str:
    """Return the group of a table: its folder of ``sql/``, or that of what gives or computes it."""
    if row["table"].startswith("catalogue_"):
        return "catalogue"
    if row["kind"] == "given":
        return "facts" if row["table"] in embedded_facts() else "given"
    if "/" in row["node"]:
        return row["node"].split("/")[0]
    *_, room, _, function = row["node"].partition("[")[0].split(".")
    return room if room in GROUPS else NODES.get(function, "serve")


def table_section(
    row: dict[str, Any], contracts: dict[str, Contract], rows: list[dict[str, Any]], pages: dict[str, str]
) -> str:
    """Return the section of a table: grain, node and inputs, and its columns or the table with the same ones."""
    contract = contracts[row["table"]]
    lines = [f"## {row['table']}", f"{row['doc']} {row['grain'][:1].upper()}{row['grain'][1:]}."]
    if row["node"]:
        links = [f"[`{name}`]({pages[name]}#{name})" if name in pages else f"`{name}`" for name in row["inputs"]]
        inputs = ", ".join(links) or "nothing"
        lines.append(f"Made by `{row['node']}` from {inputs}.")
    same = [other for other in rows if contracts[other["table"]].columns == contract.columns]
    first = max(same, key=lambda other: len(other["inputs"]))["table"]
    if first != row["table"]:
        lines.append(f"Columns as in [`{first}`]({pages[first]}#{first}).")
        return "\n\n".join(lines)
    columns = ["| column | type | unit | |", "|---|---|---|---|"]
    for column in contract.columns:
        kind = ", ".join([column.type, *(["key"] if column.key else []), *(["nullable"] if column.nullable else [])])
        note = f"{column.doc}; refers to `{column.reference}`" if column.reference else column.doc
        columns.append(f"| `{column.name}` | {cell(kind)} | {column.unit} | {cell(note)} |")
    return "\n\n".join([*lines, "\n".join(columns)])


# ---------------------------------------------------------------- reference: Python


def python_page() -> str:
    """Return the reference page of the public objects, from their signatures and docstrings."""
    parts = ["# Python", "What `dir(kernelsight)` lists. Tables are `pyarrow.Table` wherever they pass."]
    for name in sorted(ks.__all__):
        thing = getattr(ks, name)
        if inspect.isclass(thing):
            parts += [f"## {name}", described(thing)]
            for member, function in inspect.getmembers(thing, callable_or_property):
                if not member.startswith("_") and inspect.getdoc(function) and defined_here(thing, member):
                    shown = member if isinstance(function, property) else signature_of(member, function)
                    parts += [f"### {name}.{member}", f"```python\n{shown}\n```", described(function)]
        elif callable(thing):
            parts += [f"## {name}", f"```python\n{signature_of(name, thing)}\n```", described(thing)]
    return "\n\n".join(parts) + "\n"


def callable_or_property(thing: Any) -> bool:
    """Return whether a member of a class is a method or a property."""
    return inspect.isfunction(thing) or isinstance(thing, property)


def defined_here(thing: type, member: str) -> bool:
    """Return whether the package, not a base class of Python, defines a member."""
    return any(member in vars(base) and base.__module__.startswith("kernelsight") for base in thing.__mro__)


class Shown(str):
    """A type annotation as written in the source, without quotes in a signature."""

    __repr__ = str.__str__


def signature_of(name: str, function: Callable[..., Any]) -> str:
    """Return a function's name and parameters, with types as written in the source."""
    plain = inspect.signature(function)
    parameters = [
        parameter if parameter.annotation is plain.empty else parameter.replace(annotation=Shown(parameter.annotation))
        for parameter in plain.parameters.values()
        if parameter.name != "self"
    ]
    result = plain.empty if plain.return_annotation is plain.empty else Shown(plain.return_annotation)
    return f"{name}{plain.replace(parameters=parameters, return_annotation=result)}"


def described(thing: Any) -> str:
    """Return a docstring as Markdown, its examples as code blocks."""
    parts, code = [], False
    for line in (inspect.getdoc(thing) or "").replace("``", "`").splitlines():
        starts = line.startswith(">>>")
        if starts and not code:
            parts.append("```pycon")
        if code and not line.strip():
            parts.append("```")
        code = (code or starts) and bool(line.strip())
        parts.append(line)
    return "\n".join([*parts, *(["```"] if code else [])])


# ---------------------------------------------------------------- reference: deployment files


def forms_page() -> str:
    """Return the page of deployment files by form: each input that a test reads, and what is read of it."""
    parts = [
        "# Deployment files by form",
        "What `--launch @FILE#NAME` reads of each form, as flags. Each input is a case of the tests.",
    ]
    for case in yaml.safe_load(FORMS.read_text(encoding="utf-8")):
        read = ", ".join(f"`{name}` {value}" for name, value in case.get("flags", {}).items())
        chosen = f" With `{case['launch']}`." if "launch" in case else ""
        found = f"Read: {read}." if read else f"Refused: … {case['refused']} …"
        listed = f" Listed: {', '.join(case['listed'])}." if "listed" in case else ""
        title = case["case"][0].upper() + case["case"][1:]
        parts += [f"## {title}", f"````text\n{case['text'].rstrip()}\n````", found + chosen + listed]
    return "\n\n".join(parts) + "\n"


def logs_page() -> str:
    """Return the page of logs, results, traces and profiles by form: an input that a test reads, and what is read."""
    parts = [
        "# Logs, results, traces and profiles by form",
        "What is read of each form: requests, engine steps, windows of time, kernels, or statistics of which a load is "
        "made. Each input is a case of the tests; a long one is cut.",
    ]
    for case in yaml.safe_load(LOGS.read_text(encoding="utf-8")):
        text = case.get("text") or case.get("sql") or (LOGS.parent / "data" / case["file"]).read_text(encoding="utf-8")
        shown = text if len(text) <= LONGEST_INPUT else f"{text[:LONGEST_INPUT]} …"
        read = [f"As a load: {_values(case['load'])}." if "load" in case else ""]
        for table, expected in case.get("read", {}).items():
            inner = {name: value for name, value in expected.items() if not isinstance(value, dict)}
            places = [f"{name}: {_values(value)}" for name, value in expected.items() if isinstance(value, dict)]
            read.append(f"`{table}`: {'; '.join([_values(inner), *places] if inner else places)}.")
        read.append(f"Counted: {_values(case['faults'])}." if case.get("faults") else "")
        title = case["case"][0].upper() + case["case"][1:]
        form = f"Form `{case['form']}`."
        parts += [f"## {title}", form, f"````text\n{shown.rstrip()}\n````", "\n\n".join(filter(None, read))]
    return "\n\n".join(parts) + "\n"


def _values(values: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` {value}" for name, value in values.items() if value is not None)


def reference() -> dict[str, str]:
    """Return the reference pages by path below reference/ of the site."""
    return {
        "cli.md": cli_page(),
        **tables_pages(),
        "python.md": python_page(),
        "forms.md": forms_page(),
        "logs.md": logs_page(),
    }


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the files of the site (an event of MkDocs)."""
    from mkdocs.structure.files import File

    for name, page in reference().items():
        files.append(File.generated(config, f"reference/{name}", content=page))
    return files
