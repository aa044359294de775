"""Parses a launch text into documents: YAML, JSON, TOML, unit files, Python, else a shell script. Nothing is run."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from kernelsight.catalog.tables import catalogue_yaml, facts
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import Refuse
from kernelsight.files.bounded_values import parse_json, parse_toml, parse_yaml
from kernelsight.files.budget import MANIFEST
from kernelsight.scenario.launch.python_calls import COMMANDS, folded, read_python

_QUOTES = str.maketrans("“”„‟«»‘‚‛\u00a0\u202f\u2003", '""""""\'\'\'   ', "\u200b\ufeff")
_APOSTROPHE = re.compile(r"(?<!\w)’|’(?!\w)")
_DASH = re.compile(r"(?<!\S)(?:[–—]-?|-[–—])(?=[a-zA-Z][\w-]+)")
# of Helm; a runtime of KServe has {{.Name}} and {{.Labels…}}, which the platform fills in
_TEMPLATE = re.compile(
    r"\{\{-?\s*(?:\.(?!(?:Name|Namespace|Labels|Annotations|Spec)\b)|\$|[a-z]+\s+[\"(.$]|(?:else|end)\b)"
)
_CONTINUED = re.compile(r"(?<=[ \t])(?:[`^]|\\(?=[ \t]))[ \t]*$", re.MULTILINE)  # by PowerShell, cmd; as posted
_DOCKERFILE = re.compile(r"(?:FROM|ARG)\s+\S+(?:\s+(?!import\b)|$)", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*```[\w-]*[ \t]*$", re.MULTILINE)
_FENCED = re.compile(r"^[ \t]*```[\w-]*[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_OBJECT = re.compile(r"<[^<>]*>")  # as Python prints what has no literal
_YAML_LINE = re.compile(r"(?:-\s+)*[\"']?[\w./$-]+[\"']?\s*:(?:\s|$)|- |---|\{|%YAML")
_SECTION = re.compile(r"^\[(?:Service|Unit|Container|program:[\w.-]+)\]\s*$", re.MULTILINE)
_TOML_LINE = re.compile(r"^(?:\[+[\w.\"-]+\]+|[\w.\"-]+\s+=\s)", re.MULTILINE)
_PYTHON = re.compile(r"^(?:import|from)\s+\w[\w.]*(?:\s+import\b|\s*$|\s+as\b)", re.MULTILINE)
_SBATCH = re.compile(r"^#SBATCH\s+--?([\w-]+)[= ]\s*(\S+)", re.MULTILINE)
MOST_LOGGED = 20_000  # characters of a log's line
_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "C": "constraint"}


def read_documents(text: str, refuse: Refuse) -> list[Any]:
    """Return the documents of a launch text as values of JSON; a shell script is ``{"shell": text, "sbatch": …}``.

    ``refuse`` makes the error for a text that cannot be parsed, or is a Helm template.
    """
    text = _fenced(text) if "```" in text else text
    if logged := _logged(text):
        return [logged]
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if _TEMPLATE.search(text) and (_YAML_LINE.match(first) or first.startswith("{{")):
        raise refuse(
            "is a Helm template, whose values are not filled in: write the output of `helm template` to a file"
        )
    is_toml = _TOML_LINE.match(first) and first[0] == "["
    if first[:1] in ("{", "[") and not _SECTION.search(text) and not is_toml:
        value = parse_json(text, refuse, MANIFEST) if text.rstrip()[-1:] in ("}", "]") else parse_yaml(text, refuse)
        return value if isinstance(value, list) else [value]
    if _SECTION.search(text):
        return [_unit(text, refuse)]
    if _PYTHON.search(text) and not text.startswith("#!/bin"):
        tree = read_python(text, refuse)
        if tree is not None:
            return [tree]
    if _TOML_LINE.search(text):
        with contextlib.suppress(InvalidInput):  # it may be another form
            return [parse_toml(text, InvalidInput)]
    if _YAML_LINE.match(first):
        return parse_yaml(text, refuse)
    if _DOCKERFILE.match(first):
        return [{"dockerfile": _dockerfile(text)}]
    text = _CONTINUED.sub(r"\\", text.replace("\r\n", "\n"))
    sizes = {_SHORT.get(name, name): value for name, value in _SBATCH.findall(text)}
    return [{"shell": text, "sbatch": sizes}]


def _fenced(text: str) -> str:
    """Return the blocks of code of a page, whose prose starts no server, else all of it without the fences."""
    blocks, prose = _FENCED.findall(text), _FENCED.sub("", text)
    is_all = not blocks or any(sign in prose for sign in COMMANDS)
    return _FENCE.sub("", text) if is_all else "\n".join(blocks)


def _logged(text: str) -> dict[str, Any] | None:
    """Return the arguments that a server logs when it starts, as those of a call in a program; None: it logs none.

    >>> _logged("INFO 01-02 server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=2)")
    {'calls': [{'sglang.ServerArgs': {'model_path': 'Qwen/Qwen3-8B', 'tp_size': 2}}]}
    """
    for row in catalogue_yaml("launch_words")["logged"]:
        calls = []
        for start in re.finditer(row["starts"], text):
            line = text[start.end() : start.end() + MOST_LOGGED].partition("\n")[0]
            closed = line.rfind(")" if line.startswith("(") else "}") + 1
            arguments = folded(f"{'dict' if line.startswith('(') else ''}{_OBJECT.sub('None', line[:closed])}", {})
            if isinstance(arguments, dict):
                version = re.search(row["version"], text[: start.start()])
                stated = {name: value for name, value in arguments.items() if value is not None}
                calls.append({row["call"]: stated | ({"engine_version": version[1]} if version else {})})
        if calls:
            return {"calls": calls[-1:]}
    return None


def plain_text(text: str) -> str:
    """Return a text with typographic quotes, dashes before options and spaces as a keyboard has them.

    >>> plain_text("bash -c “vllm serve m —tensor-parallel-size 2”")
    'bash -c "vllm serve m --tensor-parallel-size 2"'
    """
    if text.isascii():
        return text
    return _DASH.sub("--", _APOSTROPHE.sub("'", text.translate(_QUOTES)))


def other_text(text: str) -> dict[str, Any] | None:
    """Return the row of ``server_programs`` for a whole text of an engine that is not simulated, or None."""
    head = text[:100_000]
    rows = (row for row in facts("server_programs").to_pylist() if row["kind"] == "text")
    return next((row for row in rows if re.search(row["name"], head, re.MULTILINE)), None)


def _dockerfile(text: str) -> dict[str, Any]:
    """Return the last instruction of each kind of a Dockerfile, its words as a list where they are JSON; all ENV."""
    found: dict[str, Any] = {"env": []}
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        name, _, value = line.strip().partition(" ")
        name, value = name.lower(), value.strip()
        with contextlib.suppress(InvalidInput):
            value = parse_json(value, InvalidInput) if value.startswith("[") else value
        if name == "env":
            found["env"].append(value if "=" in str(value).split()[0] else "=".join(str(value).split(None, 1)))
        elif name.isalpha():
            found[name] = value.split()[0] if name == "from" and isinstance(value, str) and value else value
    return found


def _unit(text: str, refuse: Refuse) -> dict[str, Any]:
    """Return the sections of a unit file of systemd; a name that occurs again has a list of values."""
    sections: dict[str, Any] = {}
    section: dict[str, Any] = {}
    for line in text.replace("\r\n", "\n").replace("\\\n", " ").split("\n"):
        line = line.strip()
        if line.startswith("-"):
            raise refuse(f"has a line that begins with {line.split()[0][:40]}: the one before ends without a backslash")
        if line.startswith("[") and line.endswith("]"):
            kind, _, name = line[1:-1].partition(":")  # [program:NAME] of supervisord
            section = sections.setdefault(kind, {})
            if name:
                inner = section.get(name)
                section[name] = section = inner if isinstance(inner, dict) else {}
        elif "=" in line and line[:1] not in ("#", ";"):
            name, _, value = line.partition("=")
            name, value = name.strip(), value.strip()
            section.setdefault(name, []).append(value)
    commands = [command.lstrip("-@:+!") for command in sections.get("Service", {}).get("ExecStart", [])]
    if commands:
        sections["Service"]["ExecStart"] = "\n".join(commands)
    for holder in sections.values():
        holder |= {name: value[-1] for name, value in holder.items() if isinstance(value, list) and "Env" not in name}
    return sections
