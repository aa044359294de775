"""The generated reference says what the program says now."""

from __future__ import annotations

import difflib
from types import ModuleType

RENEW = "run `python docs/generate.py`"


def test_the_reference_is_current(generator: ModuleType) -> None:
    made = generator.reference()
    folder = generator.DOCS / "reference"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")} == set(made)
    for name, page in made.items():
        written = (folder / name).read_text(encoding="utf-8")
        changed = list(
            difflib.unified_diff(written.splitlines(), page.splitlines(), "written", "made now", n=0, lineterm="")
        )
        assert not changed, f"docs/reference/{name} is old; {RENEW}:\n" + "\n".join(changed[:20])


def test_every_verb_and_every_flag_is_listed(generator: ModuleType) -> None:
    page = generator.cli_page()
    for name, verb in generator.verbs(generator.parser()):
        assert f"## kernelsight {name}\n" in page
        for action in verb._actions:
            assert action.dest == "help" or all(f"`{word}`" in page for word in action.option_strings)


def test_every_table_and_column_is_listed(generator: ModuleType) -> None:
    page = "\n".join(generator.tables_pages().values())
    with generator.ks.connect() as session:
        contracts = session.graph.contracts
    for name, contract in contracts.items():
        assert page.count(f"\n## {name}\n") == 1
        assert all(f"| `{column.name}` |" in page for column in contract.columns)


def test_every_public_name_is_described(generator: ModuleType) -> None:
    page = generator.python_page()
    public = [name for name in generator.ks.__all__ if not name.startswith("__")]
    assert all(f"## {name}\n" in page for name in public)
