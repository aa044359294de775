"""Type ``Flag``, one option of a table of inputs, and its reader: the options that the table's contract declares.

A contract lists them in ``options``: name, group, ``kind`` of value, range, and on the command line its spellings
(``option``), placeholder (``metavar``) and help. What an option does not state is that of its column.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from kernelsight.dataflow.locations import folder
from kernelsight.files.own import own_json, own_text

LARGEST_WHOLE_NUMBER = 2**53
# the simulated clock counts nanoseconds in 64 bits, enough for 290 years
LONGEST_LOAD_S = 1e9
# fields of a declaration whose names are words of Python, or have another name here
NAMES = {"min": "least", "max": "most", "in": "choices", "option": "spellings"}


class Flag(NamedTuple):
    """One option of a question: a keyword in Python, a column of a grid, an option of the command line.

    ``kind``: text, whole, number, word, switch, yes, tiers, shares, weights, version or words (joined by semicolons);
    ``flag_values`` checks them.
    ``column``: of its table, "" where it stands for others.
    """

    name: str
    group: str = ""
    kind: str = "text"
    help: str | None = None
    metavar: str | None = None  # placeholder of the value in --help
    column: str = ""
    above: float | None = None
    least: float | None = None
    most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()  # command-line options where they differ from --name
    everyday: bool = True  # shown by --help; --help-all shows all
    default: Any = None
    required: bool | None = None
    positional: bool = False
    many: bool = False  # takes several values
    repeated: bool = False  # may be given several times
    either: str = ""  # of those of which one may be given: optional, or one must be: required

    @property
    def options(self) -> tuple[str, ...]:
        """The command-line options that set it."""
        return self.spellings or ("--" + self.name.replace("_", "-"),)


@cache
def options_of(table: str) -> dict[str, tuple[Flag, ...]]:
    """Return the options that a table's contract declares, by their group, in the order of the contract."""
    contract = _read(table)
    docs = {column["name"]: column["doc"] for name in contract.get("like", ()) for column in _read(name)["columns"]}
    docs |= {column["name"]: column["doc"] for column in contract["columns"]}
    groups: dict[str, tuple[Flag, ...]] = {}
    rare = any(option.get("everyday") for option in contract["options"])
    for option in contract["options"]:
        flag = flag_of({"everyday": not rare} | option, docs)
        groups[flag.group] = (*groups.get(flag.group, ()), flag)
    return groups


def _read(table: str) -> dict[str, Any]:
    return own_json(own_text(folder("schemas") / f"{table}.json"))


def flag_of(option: Mapping[str, Any], docs: Mapping[str, str] = MappingProxyType({})) -> Flag:
    """Return a declared option as a flag; ``docs``: texts of columns, for one that states no help.

    >>> flag_of({"name": "tolerance", "kind": "number", "min": 0, "default": 0.02, "help": "loss"}).help
    'loss (default: 0.02)'
    """
    fields: dict[str, Any] = {NAMES.get(name, name): value for name, value in option.items()}
    column = fields.get("column", option["name"])
    doc, _, default = docs.get(column, "").partition("; null: ")
    words = fields.get("help") or doc
    default = fields.get("default", default if "help" not in fields else "")
    if words and default not in ("", None) and not isinstance(default, bool) and "(default" not in words:
        words += f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
    if fields.get("kind") == "number" and "default" in fields:
        fields["default"] = float(fields["default"])
    if fields.get("kind") == "whole":
        fields = {"least": 1, "most": LARGEST_WHOLE_NUMBER} | fields
    for name in ("choices", "spellings"):
        fields[name] = tuple(fields.get(name, ()))
    return Flag(**fields | {"help": words or None, "column": column if column in docs else ""})
