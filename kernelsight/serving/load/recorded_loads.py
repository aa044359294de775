"""Reads a recorded load, a trace or conversations of coding agents: requests, and which of them wait for which."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight import errors
from kernelsight.errors import shown
from kernelsight.files.row_faults import Faults
from kernelsight.scenario.load_rules import CONVERSATION_ENDINGS
from kernelsight.serving.load import dependencies as waiting
from kernelsight.serving.load.chat_files import is_chats, read_chats, say_once
from kernelsight.serving.load.conversation_files import Conversations, is_conversation, read_conversations
from kernelsight.serving.load.dependencies import Dependencies
from kernelsight.serving.load.trace_files import content_of, read_container
from kernelsight.serving.load.trace_formats import Fault, RawTrace
from kernelsight.serving.load.traces import TRACE_SCHEMA, note, numbers, requests_of_trace, text_of


class RecordedLoad(NamedTuple):
    """Requests as a table of ``TRACE_SCHEMA`` in recorded order, and their dependencies by row number.

    ``timed``: requests that wait for no other have recorded arrivals; otherwise the scenario's rate decides them.
    """

    requests: pa.Table
    dependencies: Dependencies
    timed: bool = True


def read_load(
    path: str | os.PathLike[str],
    *,
    shared_prefix: bool = False,
    columns: str | None = None,
    tokenizer: str | None = None,
) -> RecordedLoad:
    """Read a trace, texts of chats, a conversation, or a folder of conversations.

    ``shared_prefix``: see ``conversation_files``; ``columns``: see ``trace_formats.recognise``; ``tokenizer``: path of
    the tokenizer that counts the tokens of texts. Requests that failed or cannot be used are left out, and a log record
    says how many and why. Raises InvalidInput with the file and, if known, the line of the decompressed file (from 1).
    """
    path, unused = Path(path), Faults()
    data = b"" if path.is_dir() else content_of(path)
    if path.is_dir() or is_conversation(data):
        files = dict.fromkeys(_in_folder(path), content_of) if path.is_dir() else {path: lambda _: data}
        conversations = read_conversations(files, unused, shared_prefix=shared_prefix)
        if unused.counted:
            say_once(f"trace {path}: {unused.sentence(len(files) - unused.rows, 'files')}")
        return _of_conversations(conversations)
    if shared_prefix:
        problem = "shared_prefix is set, but it states no tokens of tools and system prompts"
        raise errors.trace_unusable(path, problem, "Leave shared_prefix unset: the hashes say what prompts share.")
    if is_chats(data) and not columns:
        return _of_conversations(read_chats(path, data, tokenizer))
    raw, requests = read_container(path, data, columns), None
    while requests is None:
        faults: list[Fault] = []
        dependencies = _dependencies(raw, faults)
        waits = np.zeros(raw.columns.num_rows, bool)
        waits[dependencies.request] = True
        found = requests_of_trace(raw, waits, faults)
        raw, requests = (raw.without(faults), None) if faults else (raw, found)
    if raw.unused.rows > requests.num_rows:
        all_rows = raw.unused.rows + requests.num_rows
        advice = f"Of {all_rows:,} requests {raw.unused.rows:,} cannot be used: give a trace of a known form."
        raise errors.trace_place_unusable(path, *raw.unused.first(), advice)
    if raw.unused.counted:
        say_once(f"trace {path}: {raw.unused.sentence(requests.num_rows, 'requests')}")
    return RecordedLoad(requests, dependencies, timed=raw.format.arrival is not None)


def read_trace(path: str | os.PathLike[str]) -> pa.Table:
    """Return the requests of a recorded load (``read_load``) as a table of ``TRACE_SCHEMA``."""
    return read_load(path).requests


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a recorded load, sorted by name: one file, or the conversations of a folder."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.name.endswith(CONVERSATION_ENDINGS) and file.is_file())


def _in_folder(folder: Path) -> list[Path]:
    """Return the conversations of a folder, sorted by name; InvalidInput: there are none."""
    paths = files_of(folder)
    if not paths:
        problem = f"the folder has no file that ends with {', '.join(CONVERSATION_ENDINGS)}"
        raise errors.trace_unusable(folder, problem, "Give a folder of recorded conversations, or the path of a trace.")
    return paths


def _of_conversations(conversations: Conversations) -> RecordedLoad:
    """Return conversations as a recorded load without arrivals."""
    n = len(conversations.names)
    offsets = np.concatenate([[0], np.cumsum([ids.size for ids in conversations.hash_ids])])
    ids = np.concatenate([*conversations.hash_ids, np.zeros(0, np.int64)])
    columns = {
        "external_id": pa.array(conversations.names, pa.string()),
        "arrival_s": pa.array(np.zeros(n)),
        "prompt_tokens": pa.array(conversations.prompt_tokens),
        "output_tokens": pa.array(conversations.output_tokens),
        "hash_ids": pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids)),
        "hash_block_tokens": pa.array(np.full(n, conversations.block_tokens)),
        "priority": pa.nulls(n, pa.int64()),
        "adapter": pa.nulls(n, pa.int64()),
        "warmup": pa.array(np.zeros(n, bool)),
    }
    return RecordedLoad(pa.table(columns, schema=TRACE_SCHEMA), conversations.dependencies, timed=False)


def _dependencies(raw: RawTrace, faults: list[Fault]) -> Dependencies:
    """Return the dependencies of a trace: from its column ``after``, or the turns of its sessions; note faulty rows."""
    pairs = _after_pairs(raw, faults) + _session_pairs(raw)
    pauses = numbers(raw.column(raw.format.pause)) / raw.format.pauses_per_second
    has_pause = raw.column(raw.format.pause).is_valid().to_numpy()
    bad = has_pause & ~((pauses >= 0) & (pauses <= waiting.LONGEST_S))
    if bad.any():
        problem, advice = waiting.pause_fault(raw.columns[raw.format.pause][int(bad.argmax())].as_py())
        note(faults, bad, "pause", problem.replace("think_s", str(raw.format.pause)), advice)
    dependencies = Dependencies.of(
        [(row, after, float(pauses[row]) if has_pause[row] and not bad[row] else 0.0) for row, after in pairs]
    )
    is_endless = waiting.generations(dependencies, raw.columns.num_rows) < 0
    note(faults, is_endless, "endless", "it waits for itself, by way of the requests before it")
    return dependencies


def _after_pairs(raw: RawTrace, faults: list[Fault]) -> list[tuple[int, int]]:
    """Return (request, request named in its ``after``) as row numbers; without ids, names are row numbers from 0.

    A request that waits for one which is not there waits for itself, as do those that wait for it.
    """
    named, ids = text_of(raw, raw.format.after), text_of(raw, raw.format.request_id)
    if named.null_count == len(named):
        return []
    after, names = named.to_pylist(), ids.to_pylist() if ids.null_count < len(ids) else list(map(str, raw.rows))
    rows: dict[str | None, int] = {None: -1}
    repeated = np.array([name is not None and rows.setdefault(name, row) != row for row, name in enumerate(names)])
    lost = np.array([name not in rows for name in after])
    for bad, stated, rule in (
        (repeated, names, f"{raw.format.request_id} is {{}}, that of an earlier request as well"),
        (lost, after, f"{raw.format.after} is {{}}, but no request has this {raw.format.request_id}"),
    ):
        note(faults, bad, rule, rule.format(shown(stated[int(bad.argmax())])))
    return [(row, rows.get(name, row)) for row, name in enumerate(after) if name is not None]


def _session_pairs(raw: RawTrace) -> list[tuple[int, int]]:
    """Return (turn, the turn before it) of the sessions of a trace, as row numbers."""
    sessions = text_of(raw, raw.format.session)
    if sessions.null_count == len(sessions):
        return []
    if raw.column(raw.format.after).null_count < len(sessions):
        problem = f"it has {raw.format.after} and {raw.format.session}"
        raise errors.trace_unusable(raw.path, problem, "Keep one of them: the turns of a session are in file order.")
    codes = pc.dictionary_encode(sessions).combine_chunks().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    same = (np.diff(codes[order]) == 0) & (codes[order][1:] >= 0)
    return list(zip(order[1:][same].tolist(), order[:-1][same].tolist(), strict=True))
