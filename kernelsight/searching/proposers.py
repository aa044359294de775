"""Proposers of one's own: a file of configurations in order, or a command that reads what was measured so far.

A search takes some proposals every round, forecasts all that it has been given, and measures the few that are worth it.
Only configurations of the space count: others, and ones that were proposed before, are counted and left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelsight.dataflow.bounded_files import ROWS_BYTES, Refuse, read_text
from kernelsight.dataflow.parquet_files import read_parquet
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.searching.arrays import STATUS, SpaceArrays
from kernelsight.searching.commands import run_bounded, split_words
from kernelsight.searching.history import History
from kernelsight.searching.space_files import identity

FILES = (".json", ".jsonl", ".parquet")
# bytes that a command may print
MOST_OUTPUT = 4_194_304
HOW = "print a JSON list of configurations, or one JSON object per line"

# round, history and how many are wanted -> configurations: parameters, or a candidate_id
Source = Callable[[int, History, int], list[dict[str, Any]]]


class Proposals(NamedTuple):
    """What was proposed in one round."""

    ids: tuple[str, ...]  # candidates of the space that are new, in order
    unknown: tuple[str, ...]  # not of the space
    repeated: int
    beyond: int  # more than were wanted


class Proposer:
    """Takes configurations from a source and keeps those that a search can use; counts the others."""

    def __init__(self, source: Source, arrays: SpaceArrays, ids: np.ndarray, wanted: int) -> None:
        if wanted < 1:
            raise InvalidInput(f"--proposals is {wanted}; give a whole number above 0.")
        self.source, self.wanted = source, wanted
        self.places = {str(name): row for row, name in enumerate(ids)}
        first = json.loads(arrays.parameters[0])
        every = [json.loads(text) for text in arrays.parameters]
        self.constant = {name: value for name, value in first.items() if all(row[name] == value for row in every)}
        self.unknown: list[str] = []
        self.repeated = self.beyond = 0

    def __call__(self, number: int, history: History, known: np.ndarray) -> Proposals:
        """Return what is proposed for a round; ``known``: rows that were proposed before."""
        given = self.source(number, history, self.wanted)
        new: dict[str, None] = {}
        unknown: list[str] = []
        repeated, earlier = 0, {int(row) for row in known}
        for one in given[: self.wanted]:
            name = self.name_of(one)
            if name not in self.places:
                unknown.append(name)
            elif name in new or self.places[name] in earlier:
                repeated += 1
            else:
                new[name] = None
        return Proposals(tuple(new), tuple(unknown), repeated, max(len(given) - self.wanted, 0))

    def name_of(self, one: dict[str, Any]) -> str:
        """Return the id of a proposed configuration; parameters that never vary in the space may be left out."""
        if isinstance(one.get("candidate_id"), str):
            return one["candidate_id"]
        parameters = one.get("parameters", one)
        if not isinstance(parameters, dict) or not all(
            isinstance(each, int | float | str) for each in parameters.values()
        ):
            raise InvalidInput(
                f"the proposal {json.dumps(one)[:60]} is no configuration; give parameters as numbers and words, or "
                "candidate_id."
            )
        return identity({**self.constant, **parameters})

    def rows(self, proposals: Proposals) -> np.ndarray:
        """Return the rows of proposals, and count what was left out."""
        self.unknown += proposals.unknown
        self.repeated += proposals.repeated
        self.beyond += proposals.beyond
        return np.array([self.places[name] for name in proposals.ids], dtype=np.int64)

    def notes(self, space: str) -> list[str]:
        """Return a sentence for each kind of proposal that was left out."""
        notes = []
        if self.unknown:
            notes.append(
                f"{len(self.unknown):,} proposals are no candidates of {space!r} that can be measured, such as "
                f"{self.unknown[0][:120]}: left out"
            )
        if self.repeated:
            notes.append(f"{self.repeated:,} proposals had been made before: left out")
        if self.beyond:
            notes.append(f"{self.beyond:,} proposals were more than a round takes ({self.wanted}): left out")
        return notes


def proposer_of(
    stated: str, arrays: SpaceArrays, ids: np.ndarray, gpu: str, wanted: int, time_limit_s: float
) -> Proposer:
    """Return the proposer that ``--propose`` names: a .json, .jsonl or .parquet file, or else a command."""
    if Path(stated).suffix in FILES and len(words_of(stated)) == 1:
        return Proposer(from_file(read_configurations(Path(stated))), arrays, ids, wanted)
    return Proposer(from_command(stated, arrays, ids, gpu, time_limit_s), arrays, ids, wanted)


def words_of(stated: str) -> list[str]:
    """Return the words of ``--propose``; InvalidInput for none, or for quotes that do not close."""
    return split_words(stated, "--propose", "a .json, .jsonl or .parquet file, or a command such as './propose'")


def from_file(every: Sequence[dict[str, Any]]) -> Source:
    """Return a source that gives the next configurations of a list every round."""

    def source(number: int, history: History, wanted: int) -> list[dict[str, Any]]:
        return list(every[(number - 1) * wanted : number * wanted])

    return source


def read_configurations(path: Path) -> list[dict[str, Any]]:
    """Read configurations in order; InvalidInput: no such file, or one without configurations.

    JSON: a list of objects (parameters, or candidate_id), JSON lines: an object per line, Parquet: a column
    candidate_id, or parameters as JSON texts.
    """

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"--propose {path} {problem}; give a JSON list of objects, or JSON lines.")

    configurations = (
        _table_rows(path, refuse) if path.suffix == ".parquet" else parsed(read_text(path, refuse, ROWS_BYTES))
    )
    if not configurations:
        raise refuse("holds no configurations")
    return configurations


def _table_rows(path: Path, refuse: Refuse) -> list[dict[str, Any]]:
    table = read_parquet(path, refuse)
    names = [name for name in ("candidate_id", "parameters") if name in table.column_names]
    if not names:
        raise InvalidInput(f"--propose {path} has no column candidate_id or parameters.")
    if names[0] == "candidate_id":
        return [{"candidate_id": str(name)} for name in table["candidate_id"].to_pylist()]
    return parsed("\n".join(map(str, table["parameters"].to_pylist())))


def parsed(text: str) -> list[dict[str, Any]]:
    """Return the configurations of a JSON list or of JSON lines; InvalidInput: neither.

    >>> parsed('[{"tile": 2}]'), parsed('{"tile": 2}\\n{"tile": 4}')
    ([{'tile': 2}], [{'tile': 2}, {'tile': 4}])
    """
    try:
        configurations = json.loads(text)
    except (ValueError, RecursionError):
        configurations = None
    if not isinstance(configurations, list):
        configurations = []
        for line in text.splitlines():
            if line.strip():
                try:
                    configurations.append(json.loads(line))
                except (ValueError, RecursionError):
                    raise InvalidInput(f"the proposal {line.strip()[:60]!r} is no JSON; {HOW}.") from None
    for one in configurations:
        if not isinstance(one, dict):
            raise InvalidInput(f"the proposal {json.dumps(one)[:60]} is no JSON object; {HOW}.")
    return configurations


def from_command(command: str, arrays: SpaceArrays, ids: np.ndarray, gpu: str, time_limit_s: float) -> Source:
    """Return a source that runs a command every round, without a shell: JSON in, configurations out.

    It reads space, gpu, round, wanted, the values of each parameter, and what was measured (candidate_id, parameters,
    run, status, latency_us). RunFailed: it ended with another status than 0, or not within the time limit;
    InvalidInput: it cannot be run, or prints no configurations.
    """
    words = words_of(command)
    texts = dict(zip((str(name) for name in arrays.ids), arrays.parameters, strict=True))
    every = [json.loads(text) for text in arrays.parameters]
    values = {name: sorted({row[name] for row in every}) for name in every[0]}

    def source(number: int, history: History, wanted: int) -> list[dict[str, Any]]:
        request = {"space": arrays.space, "gpu": gpu, "round": number, "wanted": wanted, "values": values}
        request["measured"] = [_result(str(ids[row]), texts, history, place) for place, row in enumerate(history.rows)]
        ended = run_bounded(words, "--propose", time_limit_s, MOST_OUTPUT, json.dumps(request), ends_above=True)
        if not ended.whole:
            raise RunFailed(f"--propose {words[0]!r} printed more than {MOST_OUTPUT:,} bytes in round {number}; {HOW}.")
        if ended.code is None:
            raise RunFailed(f"--propose {words[0]!r} did not answer round {number} within {time_limit_s:g} s.")
        if ended.code:
            raise RunFailed(f"--propose {words[0]!r} ended with exit status {ended.code} in round {number}.")
        return parsed(ended.output)

    return source


def _result(name: str, texts: dict[str, str], history: History, place: int) -> dict[str, Any]:
    worked = bool(np.isfinite(history.logs[place]))
    return {
        **{"candidate_id": name, "parameters": json.loads(texts[name]), "run": int(history.runs[place])},
        **{"status": STATUS[1] if worked else "failed"},
        **{"latency_us": float(np.exp(history.logs[place])) if worked else None},
    }
