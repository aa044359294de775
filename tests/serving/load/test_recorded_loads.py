"""Recorded loads in which requests wait for others: traces with ``after``, sessions, conversations of coding agents."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.serving.load.recorded_loads import read_load
from kernelsight.serving.load.requests import Loads, draw_loads
from tests.asked import refusals

RECORDED = Path(__file__).resolve().parents[4] / "shared/data/agentic"
Write = Callable[[str, object], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: object) -> Path:
        text = content if isinstance(content, str) else json.dumps(content)
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


def lines(*rows: dict) -> str:
    return "".join(json.dumps({"prompt_tokens": 9, "output_tokens": 1} | row) + "\n" for row in rows)


def pairs(path: Path) -> list[tuple[int, int, float]]:
    return list(zip(*(values.tolist() for values in read_load(path).dependencies), strict=True))


def drawn(path: Path, **row: object) -> Loads:
    columns = {"load_id": "a", "trace": str(path), "seed": 0, "burstiness": 1.0, "range_ratio": 1.0} | row
    return draw_loads(pa.table({name: [value] for name, value in columns.items()}))


def test_a_request_names_the_one_that_it_waits_for(write: Write) -> None:
    rows = [
        {"request_id": "plan", "arrival_s": 3.0},
        {"request_id": "left", "after": "plan", "think_s": 2.0},
        {"request_id": "right", "after": "plan"},
        {"request_id": "later", "arrival_s": 4.0},
    ]
    path = write("day.jsonl", lines(*rows))
    assert pairs(path) == [(1, 0, 2.0), (2, 0, 0.0)]
    # in order of the earliest send, counted from the first arrival
    load = drawn(path)
    assert load.load_requests["external_id"].to_pylist() == ["plan", "right", "later", "left"]
    assert load.load_requests["arrival_s"].to_pylist() == [0.0, 0.0, 1.0, 2.0]
    assert load.load_dependencies.to_pylist() == [
        {"load_id": "a", "request_id": 1, "after": 0, "think_s": 0.0},
        {"load_id": "a", "request_id": 3, "after": 0, "think_s": 2.0},
    ]
    assert drawn(path, think_time_limit_s=0.5).load_dependencies["think_s"].to_pylist() == [0.0, 0.5]
    # what waits for a request that is cut off is sent when that would have allowed it
    cut = drawn(path, num_prompts=3)
    assert cut.load_requests.num_rows == 3 and cut.load_dependencies.num_rows == 2


def test_a_trace_without_ids_counts_its_rows(write: Write) -> None:
    path = write("day.csv", "arrival_s,prompt_tokens,output_tokens,after,think_s\n0,9,1,,\n,9,1,0,1.5\n2,9,1,,\n")
    assert pairs(path) == [(1, 0, 1.5)]


def test_turns_of_a_session_are_in_file_order(write: Write) -> None:
    row = {"input_length": 512, "output_length": 5}
    rows = [{"timestamp": 0, "session_id": "a"}, {"timestamp": 9, "session_id": "b"}, {"session_id": "a", "delay": 700}]
    path = write("m.jsonl", "".join(json.dumps(row | own) + "\n" for own in rows))
    assert pairs(path) == [(2, 0, 0.7)]


@pytest.mark.parametrize(
    ("rows", "message"),
    refusals("serving/load/test_recorded_loads::test_what_cannot_be_sent_is_left_out_in_one_sentence"),
)
def test_what_cannot_be_sent_is_left_out_in_one_sentence(
    write: Write, caplog: pytest.LogCaptureFixture, rows: list[dict], message: str
) -> None:
    """Where it is all that there is, the file is refused by the sentence of its first row."""
    caplog.set_level("INFO")
    with contextlib.suppress(InvalidInput):
        kept = read_load(write("bad.jsonl", lines(*rows))).requests.num_rows
        assert re.search(message, caplog.messages[-1])
        assert (
            f"{len(rows) - kept} of {len(rows)} requests cannot be used and are left out; line" in caplog.messages[-1]
        )
        return
    with pytest.raises(InvalidInput, match=message):
        read_load(write("bad.jsonl", lines(*rows)))


# ---------------------------------------------------------------- conversations of coding agents


def turn(t: float, tokens: int, ids: list[int], **more: object) -> dict:
    return {"t": t, "type": "n", "in": tokens, "out": 3, "hash_ids": ids, "api_time": 2.0} | more


def conversation(name: str = "one", tools: int = 130, system: int = 70, **more: object) -> dict:
    """Return tools of two blocks and a system prompt of one, then two agents side by side, then another turn."""
    agent = {"type": "subagent", "tool_tokens": 64, "system_tokens": 0}
    return {
        "id": name,
        "block_size": 64,
        "tool_tokens": tools,
        "system_tokens": system,
        "requests": [
            turn(0.0, 260, [1, 2, 3, 4]),
            turn(9.0, 330, [1, 2, 3, 4, 5], think_time=5.0),
            agent
            | {"t": 21.0, "duration_ms": 9000, "requests": [turn(0, 64, [11]), turn(4, 128, [11, 12], think_time=1)]},
            agent | {"t": 25.0, "duration_ms": 13000, "requests": [turn(0, 65, [11])]},
            turn(30.0, 400, [1, 2, 3, 4, 5, 6], think_time=19.0, out=0),
        ],
    } | more


def test_agents_run_beside_each_other_and_the_next_turn_waits_for_all(write: Write) -> None:
    load = read_load(write("one.json", conversation()))
    assert load.requests["external_id"].to_pylist() == ["one/0", "one/1", "one/2.0", "one/2.1", "one/3.0", "one/4"]
    found = list(zip(*(values.tolist() for values in load.dependencies), strict=True))
    # turn 1 ends at 11; the agents begin at 12, the last of them ends at 25 and the next turn begins 5 s later
    assert found == [(1, 0, 5.0), (2, 1, 1.0), (3, 2, 1.0), (4, 1, 1.0), (5, 3, 5.0), (5, 4, 5.0)]
    assert load.requests["output_tokens"].to_pylist() == [3, 3, 3, 3, 3, 1]
    assert not load.timed


def test_a_pause_that_is_not_recorded_is_the_recorded_distance(write: Write) -> None:
    rows = [turn(0, 64, [1]), turn(9, 64, [1]), turn(12, 64, [1])]
    del rows[1]["api_time"]
    assert pairs(write("one.json", conversation(requests=rows))) == [(1, 0, 7.0), (2, 1, 3.0)]


def test_tools_and_system_prompts_are_shared_beyond_a_conversation(write: Write) -> None:
    write("a.json", conversation("a"))
    write("b.json.gz", conversation("b", system=140))
    folder = write("c.json", conversation("c", tools=120, system=80)).parent
    ids = read_load(folder).requests["hash_ids"].to_pylist()[::6]
    # whole blocks of equal tools; of the system prompt where both are equal; all else is a conversation's own
    assert ids[0][:2] == ids[1][:2] and not set(ids[0][2:]) & set(ids[1][2:])
    assert not set(ids[0]) & set(ids[2])
    agents = [row for row in read_load(folder).requests["hash_ids"].to_pylist() if len(row) == 1]
    assert len({row[0] for row in agents}) == 1
    common = read_load(folder, shared_prefix=True).requests["hash_ids"].to_pylist()[::6]
    assert common[0][:3] == common[1][:3] == common[2][:3]
    assert len({row[3] for row in common}) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    refusals("serving/load/test_recorded_loads::test_a_conversation_is_refused_in_one_sentence"),
)
def test_a_conversation_is_refused_in_one_sentence(write: Write, change: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_load(write("one.json", conversation() | change))


def test_folders_that_cannot_be_read(write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pytest.raises(InvalidInput, match="no file that ends with"):
        read_load(tmp_path)
    write("a.json", conversation("a"))
    alone = read_load(tmp_path)
    lost = conversation("lost", block_size=32)
    for content, reason in (
        (conversation("a"), "the conversation 'a' is in a.json as well"),
        ({"model": "x"}, "it is no recorded conversation"),
        (lost, "request 0: hash_ids has 4 entries, but 260 tokens in blocks of 32 have 8"),
    ):
        folder = write("_first.json", content).parent
        # the first of two of one name is kept
        found = read_load(folder)
        assert found.requests.drop(["external_id"]).equals(alone.requests.drop(["external_id"]))
        assert f"trace {folder}: 1 of 2 files cannot be used and are left out; " in caplog.messages[-1]
        assert reason.replace("a.json", "_first.json") in caplog.messages[-1]
    (folder / "a.json").unlink()
    with pytest.raises(InvalidInput, match="request 0: hash_ids has 4 entries"):
        read_load(folder)
    with pytest.raises(InvalidInput, match="shared_prefix is set, but it states no tokens of tools"):
        read_load(write("day.jsonl", lines({"arrival_s": 0})), shared_prefix=True)


def test_sessions_begin_at_a_rate_or_all_at_once(write: Write) -> None:
    write("a.json", conversation("a"))
    folder = write("b.json", conversation("b")).parent
    for rate, distinct in ((None, 1), (0.5, 2)):
        load = drawn(folder, **({} if rate is None else {"request_rate": rate}))
        waits = set(load.load_dependencies["request_id"].to_pylist())
        firsts = [s for i, s in enumerate(load.load_requests["arrival_s"].to_pylist()) if i not in waits]
        assert len(firsts) == 2 and len(set(firsts)) == distinct
    with pytest.raises(InvalidInput, match="trace and request_rate are both set"):
        drawn(write("day.jsonl", lines({"arrival_s": 0})), request_rate=0.5)


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded conversations are not there")
@pytest.mark.whole
def test_the_recorded_conversations() -> None:
    load = read_load(RECORDED)
    assert load.requests.num_rows == 6421 + 231
    assert (load.dependencies.think_s >= 0).all() and np.unique(load.dependencies.request).size == 6652 - 101
    counts = load.requests["hash_ids"].combine_chunks().value_lengths().to_numpy()
    assert (counts == load.requests["prompt_tokens"].to_numpy() // 64).all()
