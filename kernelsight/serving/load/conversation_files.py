"""Reads recorded conversations of coding agents, one JSON file each: turns, sub-agents and hashed prompt blocks.

The format is that of github.com/callanjfox/kv-cache-tester (folder ``traces``): ``block_size``, ``tool_tokens``,
``system_tokens`` and ``requests`` with ``in``, ``out``, ``hash_ids`` (one a whole block of the prompt), ``t``,
``think_time`` and ``api_time``; an entry with ``requests`` of its own is a sub-agent, whose ``t`` is its end and
``duration_ms`` its length.

- A turn is sent ``think_time`` after the one before it has finished; where that is not recorded, after the recorded
  time from the end of that one (``api_time``; without it, from its begin).
- Sub-agents begin after the turn before them, as long after its end as was recorded, and run beside each other. The
  next turn waits for the last request of each of them, and then as long as the recorded one did after their end.
- Hashes are those of one conversation and its sub-agents. Beyond it, prompts share the whole blocks of the tools where
  ``tool_tokens`` are equal, and those of the system prompt where ``system_tokens`` are equal as well; with
  ``shared_prefix`` the blocks of tools and system prompt are common to all conversations and agents.
- An answer without tokens counts as one token: an engine generates at least that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelsight import errors
from kernelsight.errors import shown
from kernelsight.files.bounded_files import decoded
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.budget import WHOLE
from kernelsight.files.numbers import is_number
from kernelsight.files.row_faults import Faults
from kernelsight.serving.load.dependencies import Dependencies, first_bad_pause, pause_fault

LARGEST_SIZE = 2**53
ADVICE = "Correct it, or remove the file."


class Conversations(NamedTuple):
    """Requests of conversations, one conversation after the other, each request after those that it waits for."""

    names: list[str]
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    hash_ids: list[np.ndarray]  # of each request, numbered over all conversations
    block_tokens: int  # of a hash
    dependencies: Dependencies


def is_conversation(data: bytes) -> bool:
    """Return whether the content of a file is a recorded conversation, by its fields."""
    head = data[: 1 << 16]
    return head.lstrip()[:1] == b"{" and b'"requests"' in head and b'"block_size"' in head


def read_conversations(
    files: Mapping[Path, Callable[[Path], bytes]], unused: Faults, *, shared_prefix: bool = False
) -> Conversations:
    """Read conversations from files, by what gives their content; files that cannot be used are counted as ``unused``.

    InvalidInput: all of them are; it names the first and, if known, the request.
    """
    reading, read, first = _Reading(shared_prefix), 0, None
    for path, content_of in files.items():
        before = [len(values) for values in reading.rows()]
        try:
            reading.add(path, content_of(path))
            read += 1
        except errors.InvalidInput as fault:
            first = first or fault
            reason = str(fault).removeprefix(f"trace {path}").lstrip(":, ").removesuffix(f". {ADVICE}")
            unused.add(reason, 1, path.name, reason)
            for values, size in zip(reading.rows(), before, strict=True):
                del values[size:]
            reading.block_tokens = reading.block_tokens if read else None
            reading.known = {name: known for name, known in reading.known.items() if known != path}
    if not read and first is not None:
        raise first
    return reading.conversations()


class _Reading:
    """The conversations read so far, and the numbers of the hashes that several of them share."""

    def __init__(self, shared_prefix: bool) -> None:
        self.shared_prefix = shared_prefix
        self.names: list[str] = []
        self.known: dict[str, Path] = {}
        self.prompts: list[int] = []
        self.outputs: list[int] = []
        self.hashes: list[np.ndarray] = []
        self.pairs: list[tuple[int, int, float]] = []
        self.shared: dict[tuple, int] = {}  # number of each shared block, by its content (tools, system prompt)
        self.blocks = 0
        self.block_tokens: int | None = None

    def rows(self) -> tuple[list[Any], ...]:
        """Return the lists that grow with each request, or with what it waits for."""
        return self.names, self.prompts, self.outputs, self.hashes, self.pairs

    def conversations(self) -> Conversations:
        """Return all requests that were read."""
        sizes = np.array(self.prompts, np.int64), np.array(self.outputs, np.int64)
        return Conversations(self.names, *sizes, self.hashes, self.block_tokens or 1, Dependencies.of(self.pairs))

    def add(self, path: Path, data: bytes) -> None:
        """Read one file."""

        def refuse(problem: str) -> errors.InvalidInput:
            return errors.trace_unusable(path, f"it {problem}", ADVICE)

        if not is_conversation(data):
            problem = "it is no recorded conversation: it lacks block_size and requests"
            raise errors.trace_unusable(path, problem, "Give a folder of conversations alone, or the path of a trace.")
        document = parse_json(decoded(data, refuse), refuse, WHOLE)
        if not isinstance(document, dict) or not isinstance(document.get("requests"), list):
            raise errors.trace_unusable(path, "it has no list of requests", ADVICE)
        conversation = _Conversation(self, path, document)
        conversation.add_agent(document, "", None)
        self.hashes += self._numbered(conversation.hashes, conversation.shared)

    def _numbered(self, hashes: list[np.ndarray], shared: Mapping[int, tuple]) -> list[np.ndarray]:
        """Return the hashes of one conversation numbered over all; ``shared``: keys of those that others may share."""
        distinct, indices = np.unique(np.concatenate([*hashes, np.zeros(0, np.int64)]), return_inverse=True)
        numbers = np.arange(self.blocks, self.blocks + distinct.size)
        self.blocks += distinct.size
        for hash_id, key in shared.items():
            row = int(np.searchsorted(distinct, hash_id))
            numbers[row] = self.shared.setdefault(key, int(numbers[row]))
        return np.split(numbers[indices], np.cumsum([ids.size for ids in hashes]))[:-1]


class _Conversation:
    """One file: its requests are added to what was read so far."""

    def __init__(self, reading: _Reading, path: Path, document: Mapping[str, Any]) -> None:
        self.reading, self.path = reading, path
        self.name = str(document.get("id", path.name))
        if self.name in reading.known:
            problem = f"the conversation {shown(self.name)} is in {reading.known[self.name].name} as well"
            raise errors.trace_unusable(path, problem, "Remove one of the files.")
        reading.known[self.name] = path
        self.block = int(self._number(document, "block_size", "the conversation", least=1))
        if reading.block_tokens not in (None, self.block):
            problem = f"its blocks have {self.block} tokens, those of the others {reading.block_tokens}"
            raise errors.trace_unusable(path, problem, "Give conversations of one block size.")
        reading.block_tokens = self.block
        self.hashes: list[np.ndarray] = []
        self.shared: dict[int, tuple] = {}  # key across conversations of each hash of tools and system prompt

    def _number(self, row: Mapping, field: str, where: str, least: float = 0, default: float | None = None) -> float:
        """Return a number of ``row``; InvalidInput: missing, or not from ``least`` to LARGEST_SIZE."""
        value = row.get(field, default)
        good = is_number(value) and least <= value <= LARGEST_SIZE
        if not good:
            what = f"{field} is {shown(value)}" if field in row else f"{field} is missing"
            rule = f"{what}, but must be a number, at least {least}"
            raise errors.trace_place_unusable(self.path, where, rule, ADVICE)
        return float(value)

    def add_agent(self, agent: Mapping[str, Any], prefix: str, start: tuple[int, float] | None) -> int | None:
        """Add the requests of the conversation or of a sub-agent; return the number of the last one.

        ``start``: the request that a sub-agent's first one waits for, and the pause in seconds.
        """
        tools, system = (
            int(self._number(agent, name, "the conversation", default=0)) for name in ("tool_tokens", "system_tokens")
        )
        last, ended_s, waiting = None, 0.0, []  # waiting: (last request of a sub-agent, its end)
        is_first = True
        for row_number, row in enumerate(agent["requests"]):
            where = f"request {prefix}{row_number}"
            if not isinstance(row, dict):
                raise errors.trace_place_unusable(self.path, where, f"it is {shown(row)}, not an object", ADVICE)
            moment_s = self._number(row, "t", where)
            if "requests" in row:
                if not isinstance(row["requests"], list):
                    raise errors.trace_place_unusable(self.path, where, "requests is no list", ADVICE)
                length_s = self._number(row, "duration_ms", where, default=0) / 1e3
                begun = None if last is None else (last, max(moment_s - length_s - ended_s, 0.0))
                end = self.add_agent(row, f"{prefix}{row_number}.", begun or start)
                waiting += [] if end is None else [(end, moment_s)]
                continue
            number = len(self.reading.names)
            if waiting:
                pause_s = max(moment_s - max(moment for _, moment in waiting), 0.0)
                self.reading.pairs += [(number, end, pause_s) for end, _ in waiting]
            elif last is not None:
                self.reading.pairs.append((number, last, self._pause(row, where, moment_s - ended_s)))
            elif start is not None:
                self.reading.pairs.append((number, *start))
            ids = self._hashes(row, where)
            if is_first:
                self._share(ids, tools, system)
            self._add_request(row, where, ids)
            is_first = False
            last, waiting = number, []
            ended_s = moment_s + self._number(row, "api_time", where, default=0)
        return last

    def _pause(self, row: Mapping[str, Any], where: str, recorded_s: float) -> float:
        """Return the pause before a turn in seconds; ``recorded_s``: from the end of the turn before to its start."""
        if row.get("think_time") is None:
            return max(recorded_s, 0.0)
        think_s = row["think_time"]
        if not is_number(think_s) or first_bad_pause(np.array([think_s], float)) is not None:
            problem, advice = pause_fault(think_s)
            raise errors.trace_place_unusable(self.path, where, problem.replace("think_s", "think_time"), advice)
        return float(think_s)

    def _hashes(self, row: Mapping[str, Any], where: str) -> np.ndarray:
        """Return the block hashes of a request; InvalidInput: not one for each block of its prompt."""
        hash_ids, prompt = row.get("hash_ids"), self._number(row, "in", where, least=1)
        ids = _whole_numbers(hash_ids)
        if ids is None:
            problem = f"hash_ids is {shown(hash_ids)}, not a list of whole numbers"
            raise errors.trace_place_unusable(self.path, where, problem, ADVICE)
        blocks = int(prompt) // self.block
        if len(ids) not in (blocks, -(-int(prompt) // self.block)):
            problem = (
                f"hash_ids has {len(ids)} entries, but {int(prompt)} tokens in blocks of {self.block} have {blocks}"
            )
            raise errors.trace_place_unusable(self.path, where, problem, ADVICE)
        return ids

    def _share(self, ids: np.ndarray, tools: int, system: int) -> None:
        """Note the keys of the leading blocks of an agent's first prompt, which other conversations may share."""
        for block, hash_id in enumerate(ids[: (tools + system) // self.block].tolist()):
            key = ("tools", tools, block) if (block + 1) * self.block <= tools else ("system", tools, system, block)
            self.shared.setdefault(hash_id, ("all", block) if self.reading.shared_prefix else key)

    def _add_request(self, row: Mapping[str, Any], where: str, ids: np.ndarray) -> None:
        reading = self.reading
        reading.names.append(f"{self.name}/{where.removeprefix('request ')}")
        reading.prompts.append(int(row["in"]))
        reading.outputs.append(max(int(self._number(row, "out", where)), 1))
        self.hashes.append(ids)


def _whole_numbers(value: object) -> np.ndarray | None:
    """Return a list of whole numbers as an int64 array; None: ``value`` is something else."""
    if not isinstance(value, list):
        return None
    try:
        values = np.array(value if value else np.zeros(0, np.int64))
    except (ValueError, OverflowError):
        return None
    return values.astype(np.int64) if values.dtype.kind == "i" and values.ndim == 1 else None
