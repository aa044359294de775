"""The generated reference says what the program says now."""

from __future__ import annotations

import difflib
from types import ModuleType

import pytest

RENEW = "run `python docs/generate.py`"


@pytest.mark.parametrize("name", ["cli.md", "tables.md", "python.md"])
def test_the_reference_is_current(generator: ModuleType, name: str) -> None:
    written = (generator.DOCS / "reference" / name).read_text(encoding="utf-8")
    made = generator.REFERENCE[name]()
    changed = list(
        difflib.unified_diff(written.splitlines(), made.splitlines(), "written", "made now", n=0, lineterm="")
    )
    assert not changed, f"docs/reference/{name} is old; {RENEW}:\n" + "\n".join(changed[:20])


def test_every_verb_and_every_flag_is_listed(generator: ModuleType) -> None:
    page = generator.cli_page()
    for name, verb in generator.verbs(generator.parser()):
        assert f"## kernelsight {name}\n" in page
        for action in verb._actions:
            assert action.dest == "help" or all(f"`{word}`" in page for word in action.option_strings)


def test_every_table_and_column_is_listed(generator: ModuleType) -> None:
    page = generator.tables_page()
    with generator.ks.connect() as session:
        contracts = session.graph.contracts
    for name, contract in contracts.items():
        assert page.count(f"### {name}\n") == 1
        assert all(f"| `{column.name}` |" in page for column in contract.columns)


def test_every_public_name_is_described(generator: ModuleType) -> None:
    page = generator.python_page()
    public = [name for name in generator.ks.__all__ if not name.startswith("__")]
    assert all(f"## {name}\n" in page for name in public)
