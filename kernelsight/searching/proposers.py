"""External proposers: a file of configurations in order, or a command that reads the measurements so far.

A search takes some proposals every round, forecasts all proposals so far, and measures the most promising ones. Only
configurations of the space are used: others, and repeated ones, are counted and dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.files.bounded_files import Refuse, read_text
from kernelsight.files.bounded_values import json_values
from kernelsight.files.budget import ROWS
from kernelsight.files.own import own_json
from kernelsight.files.parquet_files import read_parquet
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
    """The proposals of one round."""

    ids: tuple[str, ...]  # candidates of the space that are new, in order
    unknown: tuple[str, ...]  # not of the space
    repeated: int
    beyond: int  # more than were wanted


class Proposer:
    """Takes configurations from a source, keeps those of the space, and counts the others."""

    def __init__(self, source: Source, arrays: SpaceArrays, ids: np.ndarray, per_round: int) -> None:
        self.source, self.wanted = source, per_round
        self.places = {str(name): row for row, name in enumerate(ids)}
        first_configuration = own_json(arrays.parameters[0])
        configurations = [own_json(text) for text in arrays.parameters]
        self.constant = {
            name: value
            for name, value in first_configuration.items()
            if all(row[name] == value for row in configurations)
        }
        self.unknown: list[str] = []
        self.repeated = self.beyond = 0

    def __call__(self, number: int, history: History, proposed_before: np.ndarray) -> Proposals:
        """Return the proposals of a round; ``proposed_before``: rows of earlier ones."""
        configurations = self.source(number, history, self.wanted)
        new: dict[str, None] = {}
        unknown: list[str] = []
        repeated, earlier = 0, {int(row) for row in proposed_before}
        for configuration in configurations[: self.wanted]:
            name = self.name_of(configuration)
            if name not in self.places:
                unknown.append(name)
            elif name in new or self.places[name] in earlier:
                repeated += 1
            else:
                new[name] = None
        return Proposals(tuple(new), tuple(unknown), repeated, max(len(configurations) - self.wanted, 0))

    def name_of(self, proposal: dict[str, Any]) -> str:
        """Return the id of a proposed configuration; parameters that never vary in the space may be left out."""
        if isinstance(proposal.get("candidate_id"), str):
            return proposal["candidate_id"]
        parameters = proposal.get("parameters", proposal)
        if not isinstance(parameters, dict) or not all(
            isinstance(value, int | float | str) for value in parameters.values()
        ):
            raise InvalidInput("a proposal is no configuration: give parameters as numbers and words, or candidate_id.")
        return identity({**self.constant, **parameters})

    def rows(self, proposals: Proposals) -> np.ndarray:
        """Return the rows of proposals, and add the dropped ones to the counts."""
        self.unknown += proposals.unknown
        self.repeated += proposals.repeated
        self.beyond += proposals.beyond
        return np.array([self.places[name] for name in proposals.ids], dtype=np.int64)

    def notes(self, space: str) -> list[str]:
        """Return one sentence per reason for which proposals were dropped."""
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
    proposer: str, arrays: SpaceArrays, ids: np.ndarray, gpu: str, per_round: int, time_limit_s: float
) -> Proposer:
    """Return the proposer that ``--propose`` names: a .json, .jsonl or .parquet file, or else a command."""
    if Path(proposer).suffix in FILES and len(words_of(proposer)) == 1:
        return Proposer(from_file(read_configurations(Path(proposer))), arrays, ids, per_round)
    return Proposer(from_command(proposer, arrays, ids, gpu, time_limit_s), arrays, ids, per_round)


def words_of(command: str) -> list[str]:
    """Split the command of ``--propose`` into words; InvalidInput for none, or for quotes that do not close."""
    return split_words(command, "--propose", "a .json, .jsonl or .parquet file, or a command such as './propose'")


def from_file(configurations: Sequence[dict[str, Any]]) -> Source:
    """Return a source of the next configurations of a list every round."""

    def source(number: int, history: History, per_round: int) -> list[dict[str, Any]]:
        return list(configurations[(number - 1) * per_round : number * per_round])

    return source


def read_configurations(path: Path) -> list[dict[str, Any]]:
    """Read configurations in order; InvalidInput: no such file, or one without configurations.

    JSON: a list of objects (parameters, or candidate_id), JSON lines: an object per line, Parquet: a column
    candidate_id, or parameters as JSON texts.
    """

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"--propose {path} {problem}; give a JSON list of objects, or JSON lines.")

    configurations = _table_rows(path, refuse) if path.suffix == ".parquet" else parsed(read_text(path, refuse, ROWS))
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
    """Parse configurations from a JSON list or JSON lines; InvalidInput: neither."""
    try:
        configurations = [value for value, _ in json_values(text)]
    except json.JSONDecodeError as problem:
        line = text[text.rfind("\n", 0, problem.pos) + 1 :].partition("\n")[0]
        raise InvalidInput(f"the proposal {line.strip()[:60]!r} is no JSON; {HOW}.") from None
    if len(configurations) == 1 and isinstance(configurations[0], list):
        configurations = configurations[0]
    for configuration in configurations:
        if not isinstance(configuration, dict):
            raise InvalidInput(f"a proposal is no JSON object; {HOW}.")
    return configurations


def from_command(command: str, arrays: SpaceArrays, ids: np.ndarray, gpu: str, time_limit_s: float) -> Source:
    """Return a source that runs a command every round, without a shell: a JSON request in, configurations out.

    The request has space, gpu, round, wanted, the values of each parameter, and the measurements so far (candidate_id,
    parameters, run, status, latency_us). RunFailed: an exit status other than 0, or none within the time limit;
    InvalidInput: it cannot be run, or prints no configurations.
    """
    words = words_of(command)
    texts = dict(zip((str(name) for name in arrays.ids), arrays.parameters, strict=True))
    configurations = [own_json(text) for text in arrays.parameters]
    values = {name: sorted({row[name] for row in configurations}) for name in configurations[0]}

    def source(number: int, history: History, per_round: int) -> list[dict[str, Any]]:
        request = {"space": arrays.space, "gpu": gpu, "round": number, "wanted": per_round, "values": values}
        request["measured"] = [_result(str(ids[row]), texts, history, index) for index, row in enumerate(history.rows)]
        ended = run_bounded(words, "--propose", time_limit_s, MOST_OUTPUT, json.dumps(request), ends_above=True)
        if not ended.is_complete:
            raise RunFailed(f"--propose {words[0]!r} printed more than {MOST_OUTPUT:,} bytes in round {number}; {HOW}.")
        if ended.code is None:
            raise RunFailed(f"--propose {words[0]!r} did not answer round {number} within {time_limit_s:g} s.")
        if ended.code:
            raise RunFailed(f"--propose {words[0]!r} ended with exit status {ended.code} in round {number}.")
        return parsed(ended.output)

    return source


def _result(name: str, texts: dict[str, str], history: History, index: int) -> dict[str, Any]:
    worked = bool(np.isfinite(history.logs[index]))
    return {
        **{"candidate_id": name, "parameters": own_json(texts[name]), "run": int(history.runs[index])},
        **{"status": STATUS[1] if worked else "failed"},
        **{"latency_us": float(np.exp(history.logs[index])) if worked else None},
    }
