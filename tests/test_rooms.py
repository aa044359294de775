"""The rooms of the house: what a folder may import, read from the sources, imports for type checkers included."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "kernelsight"
# from the ground up: a room imports what stands before it
ROOMS = (
    *(
        "escape",
        "errors",
        "dataflow",
        "catalog",
        "kernels",
        "read",
        "logs",
        "fitting",
        "scenario",
        "serving",
        "views",
        "sweeps",
        "sizing",
        "attribution",
        "backtest",
    ),
    *("report", "measure", "searching", "nodes", "session", "cli", "__init__", "__main__"),
)


def imports_of(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kernelsight":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if is_module(name) else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "kernelsight"}
    return found


def is_module(name: str) -> bool:
    path = PACKAGE.parent / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """Return the room of a module; what ``python -m`` starts is above all rooms, wherever it stands."""
    return "__main__" if module.endswith(".__main__") else (module.split(".") + ["__init__"])[1]


# what the package says of itself, such as its version, is no room
IMPORTS = {module_of(path): imports_of(path) - {"kernelsight"} for path in sorted(PACKAGE.rglob("*.py"))}


def test_no_file_imports_itself_by_way_of_others() -> None:
    list(graphlib.TopologicalSorter(IMPORTS).static_order())  # raises CycleError, which names the circle


def test_every_room_has_its_place() -> None:
    assert {room_of(module) for module in IMPORTS} == set(ROOMS)


def test_nothing_is_imported_from_above() -> None:
    upwards = [
        (module, other)
        for module, others in IMPORTS.items()
        for other in others
        if ROOMS.index(room_of(other)) > ROOMS.index(room_of(module))
    ]
    assert not upwards


def test_predicting_imports_nothing_of_fitting() -> None:
    reached, waiting = set(), ["kernelsight.nodes", "kernelsight.session"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += IMPORTS.get(module, ())
    assert not {module for module in reached if room_of(module) == "fitting"}


def test_the_command_line_alone_parses_words() -> None:
    users = {path for path in PACKAGE.rglob("*.py") if "import argparse" in path.read_text(encoding="utf-8")}
    assert {room_of(module_of(path)) for path in users} == {"cli"}
