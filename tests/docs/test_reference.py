"""The reference pages of the site list every verb, flag, table, column and public name."""

from __future__ import annotations

from types import ModuleType


def test_every_verb_and_every_flag_is_listed(reference: ModuleType) -> None:
    page = reference.cli_page()
    for name, verb in reference.verbs(reference.parser()):
        assert f"## kernelsight {name}\n" in page
        for action in verb._actions:
            assert action.dest == "help" or all(f"`{word}`" in page for word in action.option_strings)


def test_every_table_and_column_is_listed(reference: ModuleType) -> None:
    page = "\n".join(reference.tables_pages().values())
    with reference.ks.connect() as session:
        contracts = session.graph.contracts
    for name, contract in contracts.items():
        if contract.kind == "internal":
            continue
        assert page.count(f"\n## {name}\n") == 1
        assert all(f"| `{column.name}` |" in page for column in contract.columns)


def test_every_public_name_is_described(reference: ModuleType) -> None:
    page = reference.python_page()
    public = [name for name in reference.ks.__all__ if not name.startswith("__")]
    assert all(f"## {name}\n" in page for name in public)
