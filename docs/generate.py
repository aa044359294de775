"""Generates documentation from the program: reference pages, recorded figures of benches, outputs of examples.

    python docs/generate.py            # everything
    python docs/generate.py PAGE ...   # the figures and examples of these pages
    python docs/generate.py --figures  # the figures of benches only (docs/figures/blocks.py); runs no example

An example is a fenced block after one of these comments. Each page runs in a separate folder:

    <!-- run -->             `kernelsight` commands (bash) or Python, run in this process
    <!-- run COMMAND -->     one command that the page shows elsewhere; without a block
    <!-- file NAME -->       written to NAME before the next block runs
    <!-- output 1-4 "TTFT" -->  replaced by the last output: lines 1 to 4 and those that begin with TTFT; or all lines
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from figures.blocks import with_figures

import kernelsight as ks
from kernelsight.cli.main import main as kernelsight_main
from kernelsight.cli.main import parser
from kernelsight.dataflow.contract import Contract
from kernelsight.shipped_tables import embedded_facts

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GENERATED = "<!-- Written by docs/generate.py: change what it reads instead. -->"
BLOCK = re.compile(r"(<!-- (run|file|output)([^\n]*?) -->\n)(?:(\s*```(\w*)\n)(.*?)(```\n))?", re.S)
FENCE = re.compile(r"^```bash[^\n]*\n(.*?)^```", re.S | re.M)
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


# ---------------------------------------------------------------- examples


def pages() -> list[Path]:
    """Return every hand-written page."""
    hand_written = [path for path in sorted(DOCS.rglob("*.md")) if GENERATED not in path.read_text(encoding="utf-8")]
    return [ROOT / "README.md", *hand_written]


def with_examples(text: str) -> str:
    """Return a page after running its examples, with each output block replaced by the new output."""
    namespace: dict[str, Any] = {"__name__": "example"}
    printed = [""]

    def replaced(match: re.Match[str]) -> str:
        comment, kind, options, head, language, body, tail = match.groups()
        if kind == "run" and options:
            printed[0] = run_commands(options)
            return match.group()
        if head is None:
            raise ValueError(f"no fenced block follows {comment.strip()}.")
        if kind == "file":
            target = Path(options.strip())
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(body, encoding="utf-8")
        elif kind == "run":
            printed[0] = run_python(body, namespace) if language == "python" else run_commands(body)
        else:
            body = chosen_lines(printed[0], options)
        return comment + head + body + tail

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return BLOCK.sub(replaced, text)


def commands(body: str) -> Iterator[list[str]]:
    """Yield the words of each command of a bash block; a command continues after a backslash and inside quotes.

    >>> list(commands("kernelsight sql 'select 1\\n  as one'  # a comment\\nkernelsight tables"))
    [['kernelsight', 'sql', 'select 1\\n  as one'], ['kernelsight', 'tables']]
    """
    text = ""
    for line in body.replace("\\\n", " ").splitlines():
        text += line + "\n"
        with contextlib.suppress(ValueError):  # no closing quotation: the command continues
            if words := shlex.split(text, comments=True):
                yield words
            text = ""
    if text:
        raise ValueError(f"no closing quotation in the example {text!r}.")


def run_commands(body: str) -> str:
    """Run `kernelsight` commands in this process; return the last one's stdout."""
    out = io.StringIO()
    for words in commands(body):
        if words[0] != "kernelsight":
            raise ValueError(f"examples run kernelsight alone, and this one begins with {words[0]!r}.")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = kernelsight_main(words[1:])
            except SystemExit as stop:  # argparse refuses wrong words
                status = stop.code
        if status:
            raise RuntimeError(f"`{shlex.join(words)}` ended with {status}: {err.getvalue()}")
    return out.getvalue()


def run_python(body: str, namespace: dict[str, Any]) -> str:
    """Run Python code in its page's namespace; return its stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(body, "example", "exec"), namespace)
    return out.getvalue()


def chosen_lines(printed: str, selection: str) -> str:
    """Return the lines in ranges such as ``1-3``, and those that begin with quoted texts; ``...`` for omitted lines.

    >>> chosen_lines("a\\nb\\nc\\nd\\n", ' 1-2 "d"')
    'a\\nb\\n...\\nd\\n'
    """
    lines = printed.rstrip("\n").splitlines()
    starts = re.findall(r'"([^"]+)"', selection)
    ranges = [(int(first), int(last)) for first, last in re.findall(r"(\d+)-(\d+)", selection)]
    if missing := [start for start in starts if not any(line.startswith(start) for line in lines)]:
        raise ValueError(f"no line of the output begins with {missing[0]!r}; it is:\n{printed}")
    parts: list[str] = []
    for number, line in enumerate(lines, start=1):
        kept = any(first <= number <= last for first, last in ranges) or line.startswith(tuple(starts))
        if kept or not selection.strip():
            parts.append(line)
        elif parts[-1:] != ["..."]:
            parts.append("...")
    return "\n".join([*parts, ""])


# ---------------------------------------------------------------- reference: commands


def cli_page() -> str:
    """Return the reference page of all commands, from their parser."""
    parts = [
        "# Commands",
        GENERATED,
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
        GENERATED,
        "A *given* table is stated by you or ships with the package; a *derived* table is computed when it is asked "
        "for. Units end the names of columns. `kernelsight tables TABLE` prints the same.",
    ]
    written = {}
    for name, members in groups.items():
        links = [f"| [`{row['table']}`](tables/{name}.md#{row['table']}) | {cell(row['doc'])} |" for row in members]
        index.append(f"## {GROUPS[name]}\n\n" + "\n".join(["| table | |", "|---|---|", *links]))
        sections = [table_section(row, contracts, rows, pages) for row in members]
        top = "All tables: [reference](../tables.md)."
        written[f"tables/{name}.md"] = "\n\n".join([f"# Tables: {GROUPS[name]}", GENERATED, top, *sections]) + "\n"
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
        inputs = ", ".join(f"[`{name}`]({pages[name]}#{name})" for name in row["inputs"]) or "nothing"
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
    parts = ["# Python", GENERATED, "What `dir(kernelsight)` lists. Tables are `pyarrow.Table` wherever they pass."]
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


def reference() -> dict[str, str]:
    """Return the reference pages by path below docs/reference/."""
    return {"cli.md": cli_page(), **tables_pages(), "python.md": python_page()}


def main() -> None:
    """Write the reference and all pages' figures and outputs, or those of the named pages."""
    parser_of_pages = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser_of_pages.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all, and the reference")
    parser_of_pages.add_argument("--figures", action="store_true", help="figures of benches only; runs no example")
    arguments = parser_of_pages.parse_args()
    for name, page in reference().items() if not arguments.pages and not arguments.figures else ():
        (DOCS / "reference" / name).parent.mkdir(exist_ok=True)
        (DOCS / "reference" / name).write_text(page, encoding="utf-8")
    for path in arguments.pages or pages():
        before = path.read_text(encoding="utf-8")
        after = with_figures(before if arguments.figures else with_examples(before))
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path}: renewed", file=sys.stderr)


if __name__ == "__main__":
    main()
