"""The rooms of the house: what a folder may import, read from the sources, imports for type checkers included."""

from __future__ import annotations

import ast
import graphlib
from functools import cache
from pathlib import Path

import pytest

from kernelsight.project_graph import project_graph

PACKAGE = Path(__file__).resolve().parents[1] / "kernelsight"
# from the ground up: a room imports what stands before it
ROOMS = tuple(
    """
    version number_format escape errors files caches dataflow laboratory catalog models kernels fitting scenario
    serving logs present forward measure sweeps sizing upgrades comparison searching choices project_graph
    session public_functions __init__ server plugins evaluation cli __main__
    """.split()
)
# folders within a room that have an order of their own
WITHIN = {"serving": ("compilation", "costs", "load", "engine", "runs", "breakdown")}
# what serves users; `evaluation` scores it
PRODUCT = ROOMS[: ROOMS.index("evaluation")]
PUBLIC_FUNCTIONS = {
    "predict",
    "simulate",
    "what_if",
    "sweep",
    "find_rates",
    "size",
    "upgrade",
    "compare",
    "search",
    "connect",
    "step_time",
}


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


def place_of(module: str) -> str:
    """Return the room of a module, with the folder in it where the room has an order of its own."""
    room, parts = room_of(module), module.split(".")
    return "/".join([room, *parts[2:3]]) if room in WITHIN and len(parts) > 2 else room


def arrows() -> dict[str, dict[str, int]]:
    """Return how many modules of each place import a module of each other place."""
    found: dict[str, dict[str, int]] = {}
    for module, others in all_imports().items():
        own = found.setdefault(place_of(module), {})
        for other in {place_of(other) for other in others} - {place_of(module)}:
            own[other] = own.get(other, 0) + 1
    return found


# most lines of files by folder and ending, and contracts: lowered with each part of the house that is done; the aim
BUDGET = {
    "kernelsight/*.py": 79_650,  # 66,000
    "tests/*.py": 52_918,  # 40,000
    "docs/*.md": 5_533,  # 7,500
    "schemas/*.json": 150,  # 150 that users read
}
# code does not hide there: printed beside
BESIDE = ("benches/*.py", "sql/*.sql")


def size_of(files: str) -> int:
    """Return the lines of the files of a folder with an ending; of contracts the number of those that users read."""
    folder, _, pattern = files.partition("/")
    texts = [path.read_bytes() for path in (PACKAGE.parent / folder).rglob(pattern)]
    if folder == "schemas":
        return sum(b'"kind": "given"' in text or b'"kind": "derived"' in text for text in texts)
    return sum(text.count(b"\n") for text in texts)


def levels() -> dict[str, int]:
    """Return the level of each place: one above the highest of those that it imports."""
    graph = arrows()
    found: dict[str, int] = {}
    for place in graphlib.TopologicalSorter(graph).static_order():
        found[place] = 1 + max((found[other] for other in graph.get(place, ())), default=0)
    return found


@cache
def all_imports() -> dict[str, set[str]]:
    """Return what each module imports: read once, in the processes that run these tests."""
    return {module_of(path): imports_of(path) for path in sorted(PACKAGE.rglob("*.py"))}


def test_no_file_imports_itself_by_way_of_others() -> None:
    list(graphlib.TopologicalSorter(all_imports()).static_order())  # raises CycleError, which names the circle


def test_every_room_has_its_place() -> None:
    assert {room_of(module) for module in all_imports()} == set(ROOMS)


def test_nothing_is_imported_from_above() -> None:
    upwards = [
        (module, other)
        for module, others in all_imports().items()
        for other in others
        if ROOMS.index(room_of(other)) > ROOMS.index(room_of(module))
    ]
    assert not upwards


def test_folders_within_a_room_have_an_order() -> None:
    upwards = [
        (module, other)
        for module, others in all_imports().items()
        for other in others
        if (room := room_of(module)) in WITHIN and room_of(other) == room and len(other.split(".")) > 2
        if WITHIN[room].index(other.split(".")[2]) > WITHIN[room].index(module.split(".")[2])
    ]
    assert not upwards


def test_places_have_levels() -> None:
    assert set(levels()) == set(arrows())


def test_what_serves_users_imports_nothing_that_scores_it() -> None:
    users = {module for module, others in all_imports().items() if "evaluation" in {room_of(other) for other in others}}
    assert not {module for module in users if room_of(module) in PRODUCT}


def test_no_module_of_the_package_imports_the_laboratory_by_name() -> None:
    """Modules of benches/evaluation are reached by registration alone: a wheel does not hold them."""
    assert not {
        name for names in all_imports().values() for name in names if name.startswith("kernelsight.laboratory.")
    }


@pytest.mark.parametrize("files", BUDGET)
def test_the_house_stays_within_its_budget(files: str) -> None:
    assert size_of(files) <= BUDGET[files], "each concept is a cost: delete what a new one replaces"


def test_no_folder_bears_the_name_of_a_public_function() -> None:
    """Importing kernelsight.compare.answer would replace the function kernelsight.compare by a module."""
    assert not {module.split(".")[1] for module in all_imports() if "." in module} & PUBLIC_FUNCTIONS


def test_predicting_imports_nothing_of_fitting() -> None:
    nodes = {node.source.module for node in project_graph().nodes().values() if node and node.source}
    predicting = {module for module in nodes if room_of(module) in ("scenario", "kernels", "serving")}
    reached, waiting = set(), [*predicting, "kernelsight.session"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += all_imports().get(module, ())
    assert not {module for module in reached if room_of(module) == "fitting"}


def test_the_command_line_alone_parses_words() -> None:
    users = {path for path in PACKAGE.rglob("*.py") if "import argparse" in path.read_text(encoding="utf-8")}
    assert {room_of(module_of(path)) for path in users} == {"cli"}


if __name__ == "__main__":
    found = levels()
    for place, own in sorted(arrows().items(), key=lambda item: (found[item[0]], item[0])):
        imported = ", ".join(f"{other} {count}" for other, count in sorted(own.items()))
        print(f"{found[place]:2}  {place:18} <- {imported}")
    for files in (*BUDGET, *BESIDE):
        print(f"{size_of(files):7,} of {BUDGET.get(files, 0):,}  {files}")
    print(f"{max(found.values())} levels, {sum(map(len, arrows().values()))} arrows")
