"""`kernelsight size`: finds the GPUs, their number and flags that serve a rate within objectives at the lowest cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.cli.command_line import asked
from kernelsight.cli.launch_files import folder_of, write_sized
from kernelsight.cli.options import (
    deployment_flags,
    launch_line,
    open_session,
)
from kernelsight.errors import InvalidInput
from kernelsight.files.numbers import read_number
from kernelsight.present.output import PAGE_ENDINGS, as_csv, check_ending, note, write_table
from kernelsight.present.progress import Waiting
from kernelsight.present.show import HTML, show
from kernelsight.scenario.flags import LOAD_FLAGS
from kernelsight.scenario.objectives import parse_slo

if TYPE_CHECKING:
    from kernelsight.session import Session

# flags of the load and the router that the search sets
VARIED = frozenset(
    "replicas trace request_rate max_concurrency ramp_up_strategy ramp_up_start_rps ramp_up_end_rps".split()
)
FILES = (".csv", ".json")


def run(arguments: Any) -> None:
    """Size, print the answer, and write its rows, tables or page."""
    folder = folder_of(arguments.output)
    target = None if folder else check_ending(arguments.output, PAGE_ENDINGS)
    if not arguments.slo:
        raise InvalidInput("size needs --slo, the objectives to keep, such as --slo ttft_p95:1000 tpot_p99:40.")
    slo = parse_slo(arguments.slo)
    given_flags = deployment_flags(arguments)
    given_flags |= {name: value for name in LOAD_FLAGS if (value := getattr(arguments, name, None)) is not None}
    line = launch_line(arguments, given_flags)
    if line and "replicas" in line.flags:
        note("launch line: its number of replicas is not used, since the answer says how many instances are needed")
    names, files = _gpus(arguments.gpus)
    arguments.gpus = None  # here a list of names; the files among them are read below
    with open_session(arguments) as session:
        session.progress = None
        question = asked(arguments, "size_questions")
        question |= {"gpus": [*names, *_own_gpus(session, files)], "slo": slo}
        question |= {"search": _search(arguments.search or []), "correction": arguments.correction}
        with Waiting("sizing") as waiting:
            sizing = session.size(**question, report=waiting, **given_flags)
        if target and target.suffix == ".duckdb":
            sizing.save(target)
        elif target and target.suffix != HTML:
            write_table(sizing.table(), target)
        elif folder:
            write_sized(session, folder, given_flags, sizing.chosen)
    columns = list(dict.fromkeys(name for row in sizing.rows for name in row))
    show(sizing.page, arguments.format, target, lambda: as_csv(sizing.rows, columns))


def _gpus(text: str) -> tuple[list[str], list[Path]]:
    """Return (GPU names, files of GPUs) of --gpus."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    files = [Path(word) for word in words if word.lower().endswith(FILES)]
    return [word for word in words if not word.lower().endswith(FILES)], files


def _own_gpus(session: Session, files: list[Path]) -> list[str]:
    """Add the GPUs of files to the session, and return their names."""
    from kernelsight.scenario.given_facts import extend_gpus

    names_before = set(session.table("gpus")["gpu"].to_pylist())
    names = []
    for path in files:
        replaced = extend_gpus(session, path)
        for name in replaced:
            note(f"{path.name}: its row {name} replaces the catalogue GPU of that name")
        names_after = session.table("gpus")["gpu"].to_pylist()
        names += [*replaced, *(name for name in names_after if name not in names_before)]
        names_before = set(names_after)
    return names


def _search(words: list[str]) -> dict[str, list[Any]]:
    """Return the values to search by flag.

    >>> _search(["quantization=none,fp8", "max_num_seqs=64,128"])
    {'quantization': [None, 'fp8'], 'max_num_seqs': [64, 128]}
    """
    searched: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.lstrip("-").replace("-", "_")
        value_words = [value for value in values.split(",") if value]
        if not equals or not value_words:
            raise InvalidInput(f"--search {word!r} is not FLAG=V1,V2; give values, such as max_num_seqs=64,128.")
        if name in searched:
            raise InvalidInput(f"--search has {name} twice; give all its values at once.")
        constants = {"none": None, "true": True, "false": False}
        searched[name] = [constants[value] if value in constants else read_number(value) for value in value_words]
    return searched
