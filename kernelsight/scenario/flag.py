"""Type ``Flag``, one option of a table of inputs, and its reader: the options that the table's contract declares.

A contract lists them in ``options``: name, group, ``kind`` of value, range, and on the command line its spellings
(``option``), placeholder (``metavar``) and help. What an option does not state is that of its column.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

from kernelsight.dataflow.locations import folder

LARGEST_WHOLE_NUMBER = 2**53
# the simulated clock counts nanoseconds in 64 bits, enough for 290 years
LONGEST_LOAD_S = 1e9


class Flag(NamedTuple):
    """One option of a question: a keyword in Python, a column of a grid, an option of the command line.

    ``kind``: text, whole, positive, share, share_or_none, not_negative, span, word, switch, yes, tiers, weights or
    version; ``flag_values`` checks them. ``column``: of its table, "" where it stands for others.
    """

    name: str
    group: str = ""
    kind: str = "text"
    help: str | None = None
    metavar: str | None = None  # placeholder of the value in --help
    column: str = ""
    least: float = 1
    most: float = LARGEST_WHOLE_NUMBER
    choices: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()  # command-line options where they differ from --name
    everyday: bool = False  # shown by --help; --help-all shows all

    @property
    def options(self) -> tuple[str, ...]:
        """The command-line options that set it."""
        return self.spellings or ("--" + self.name.replace("_", "-"),)


@cache
def options_of(table: str) -> dict[str, tuple[Flag, ...]]:
    """Return the options that a table's contract declares, by their group, in the order of the contract.

    >>> [flag.name for flag in options_of("scenarios")["site"]]
    ['host_power_w', 'pue', 'carbon_intensity_g_per_kwh']
    """
    contract = _read(table)
    others = contract.get("like", [])
    docs = {column["name"]: column["doc"] for name in others for column in _read(name)["columns"]}
    docs |= {column["name"]: column["doc"] for column in contract["columns"]}
    groups: dict[str, tuple[Flag, ...]] = {}
    for option in contract["options"]:
        flag = _flag(option, docs)
        groups[flag.group] = (*groups.get(flag.group, ()), flag)
    return groups


def _read(table: str) -> dict[str, Any]:
    return json.loads((folder("schemas") / f"{table}.json").read_text(encoding="utf-8"))


def _flag(option: dict[str, Any], docs: dict[str, str]) -> Flag:
    """Return an option as a flag, with the text of its column as help where it states none."""
    column = option.get("column", option["name"])
    doc, _, default = docs.get(column, "").partition("; null: ")
    return Flag(
        option["name"],
        option["group"],
        option.get("kind", "text"),
        option.get("help") or f"{doc} (default: {default})" * bool(default) or doc or None,
        option.get("metavar"),
        column if column in docs else "",
        option.get("min", 1),
        option.get("max", LARGEST_WHOLE_NUMBER),
        tuple(option.get("in", ())),
        tuple(option.get("option", ())),
        option.get("everyday", False),
    )
