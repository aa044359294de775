"""External proposers: a file of configurations in order, or a command that reads the measurements so far.

A search takes some proposals every round, forecasts all proposals so far, and measures the most promising ones.
Configurations of the space are used, and where candidates are measured new source texts too: others, and repeated ones,
are counted and dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.files.bounded_files import Refuse, read_text
from kernelsight.files.bounded_values import json_values
from kernelsight.files.budget import ROWS
from kernelsight.files.own import own_json
from kernelsight.files.parquet_files import read_parquet
from kernelsight.searching.arrays import STATUS, SpaceArrays
from kernelsight.searching.commands import run_bounded, split_words
from kernelsight.searching.growth import Candidate, grown, source_id
from kernelsight.searching.history import History
from kernelsight.searching.space_files import identity
from kernelsight.searching.targets import Target

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
    sources: tuple[dict[str, Any], ...] = ()  # new source texts, as rows of ``kernel_candidates``


class Proposer:
    """Takes configurations from a source, keeps those of the space, and counts the others.

    ``grows``: a configuration with a ``source_text`` that the space does not hold becomes a candidate: where candidates
    are measured, not replayed. ``candidates``: all so far, in the order of the target's rows.
    """

    def __init__(
        self, source: Source, candidates: list[Candidate], target: Target, per_round: int, grows: bool
    ) -> None:
        self.source, self.candidates, self.target, self.wanted, self.grows = (
            source,
            candidates,
            target,
            per_round,
            grows,
        )
        self.places = {str(row["candidate_id"]): number for number, row in enumerate(candidates)}
        self.ids = list(self.places)
        first = candidates[0]["parameters"]
        self.constant = {
            name: value
            for name, value in first.items()
            if all(row["parameters"].get(name) == value for row in candidates)
        }
        self.unknown: list[str] = []
        self.repeated = self.beyond = 0

    def __call__(self, number: int, history: History, proposed_before: np.ndarray) -> Proposals:
        """Return the proposals of a round; ``proposed_before``: rows of earlier ones."""
        configurations = self.source(number, history, self.wanted)
        new: dict[str, None] = {}
        sources: dict[str, dict[str, Any]] = {}
        unknown: list[str] = []
        repeated, earlier = 0, {int(row) for row in proposed_before}
        for configuration in configurations[: self.wanted]:
            name = self.name_of(configuration)
            is_source = self.grows and name not in self.places and isinstance(configuration.get("source_text"), str)
            if name not in self.places and not is_source:
                unknown.append(name)
            elif name in new or name in sources or self.places.get(name) in earlier:
                repeated += 1
            elif is_source:
                sources[name] = self._as_candidate(name, configuration, number)
            else:
                new[name] = None
        beyond = max(len(configurations) - self.wanted, 0)
        return Proposals(tuple(new), tuple(unknown), repeated, beyond, tuple(sources.values()))

    def _as_candidate(self, name: str, configuration: Mapping[str, Any], number: int) -> dict[str, Any]:
        parameters = {**self.constant, **configuration.get("parameters", {})}
        words = {column: configuration.get(column) for column in ("source_text", "parent_id", "proposer")}
        return {"candidate_id": name, "parameters": parameters, "round": number} | words

    def name_of(self, proposal: Mapping[str, Any]) -> str:
        """Return the id of a proposed configuration; parameters that never vary in the space may be left out."""
        text = proposal.get("source_text")
        if isinstance(proposal.get("candidate_id"), str) and text is None:
            return proposal["candidate_id"]
        parameters = proposal.get("parameters", {} if text is not None else proposal)
        if not isinstance(parameters, dict) or not all(
            isinstance(value, int | float | str) for value in parameters.values()
        ):
            raise InvalidInput("a proposal is no configuration: give parameters as numbers and words, or candidate_id.")
        name = identity({**self.constant, **parameters})
        return name if text is None else source_id(str(text), name)

    def rows(self, proposals: Proposals) -> tuple[np.ndarray, Target | None]:
        """Return the rows of proposals, and the target that holds new ones; add the dropped ones to the counts."""
        self.unknown += proposals.unknown
        self.repeated += proposals.repeated
        self.beyond += proposals.beyond
        for candidate in proposals.sources:
            self.places[candidate["candidate_id"]] = len(self.ids)
            self.ids.append(candidate["candidate_id"])
            self.candidates.append(dict(candidate))
        if proposals.sources:
            self.target = grown(self.target, self.candidates)
        names = [*proposals.ids, *(candidate["candidate_id"] for candidate in proposals.sources)]
        rows = np.array([self.places[name] for name in names], dtype=np.int64)
        return rows, self.target if proposals.sources else None

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
    proposer: str, candidates: list[Candidate], target: Target, per_round: int, time_limit_s: float, grows: bool = False
) -> Proposer:
    """Return the proposer that ``--propose`` names: a .json, .jsonl or .parquet file, or else a command."""
    if Path(proposer).suffix in FILES and len(words_of(proposer)) == 1:
        source = from_file(read_configurations(Path(proposer)))
    else:
        source = from_command(proposer, candidates, target, time_limit_s)
    return Proposer(source, candidates, target, per_round, grows)


def candidates_of(arrays: SpaceArrays, target: Target, rows: pa.Table) -> list[Candidate]:
    """Return the candidates of a target in its order, parameters as an object; ``rows``: of ``kernel_candidates``."""
    by_id = {row["candidate_id"]: row for row in rows.filter(pc.equal(rows["space"], arrays.space)).to_pylist()}
    return [{**by_id[name], "parameters": own_json(by_id[name]["parameters"])} for name in map(str, target.ids)]


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


def from_command(command: str, candidates: list[Candidate], target: Target, time_limit_s: float) -> Source:
    """Return a source that runs a command every round, without a shell: a JSON request in, configurations out.

    The request has space, gpu, round, wanted, the values of each parameter, and the measurements so far (candidate_id,
    parameters, source_text of one that has its own, run, status, latency_us). RunFailed: an exit status other than 0,
    or none within the time limit; InvalidInput: it cannot be run, or prints no configurations.
    """
    words = words_of(command)
    values = values_of(candidates)

    def source(number: int, history: History, per_round: int) -> list[dict[str, Any]]:
        request = {"space": target.space, "gpu": target.gpu, "round": number, "wanted": per_round, "values": values}
        request["measured"] = [_result(candidates[row], history, index) for index, row in enumerate(history.rows)]
        ended = run_bounded(words, "--propose", time_limit_s, MOST_OUTPUT, json.dumps(request), ends_above=True)
        if not ended.is_complete:
            raise RunFailed(f"--propose {words[0]!r} printed more than {MOST_OUTPUT:,} bytes in round {number}; {HOW}.")
        if ended.code is None:
            raise RunFailed(f"--propose {words[0]!r} did not answer round {number} within {time_limit_s:g} s.")
        if ended.code:
            raise RunFailed(f"--propose {words[0]!r} ended with exit status {ended.code} in round {number}.")
        return parsed(ended.output)

    return source


def values_of(candidates: Sequence[Candidate]) -> dict[str, list[Any]]:
    """Return the values that each parameter takes in a space, in order."""
    names = candidates[0]["parameters"]
    return {name: sorted({row["parameters"][name] for row in candidates}) for name in names}


def _result(candidate: Candidate, history: History, index: int) -> dict[str, Any]:
    worked = bool(np.isfinite(history.logs[index]))
    text = candidate.get("source_text")
    return {
        **{"candidate_id": candidate["candidate_id"], "parameters": candidate["parameters"]},
        **({} if text is None else {"source_text": text}),
        **{"run": int(history.runs[index]), "status": STATUS[1] if worked else "failed"},
        **{"latency_us": float(np.exp(history.logs[index])) if worked else None},
    }
