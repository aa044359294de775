"""Cached tokens of conversations, against a replay in plain Python that knows nothing of the simulation.

Requests are replayed in the order in which the simulation admitted them, from the files themselves. The GPU's cache is
small beside the tier, which has every block that was ever computed, or the least recently used ones of a capacity.
"""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from kernelsight.session import Session

RECORDED = Path(__file__).resolve().parents[4] / "shared/data/agentic"
BLOCK = 64
PROMPTS = 400


def recorded(seed: int, conversations: int) -> list[dict]:
    """Return made-up conversations in the form of recorded ones: prompts that grow, restarts, and agents."""
    dice = np.random.default_rng(seed)
    made = []
    for number in range(conversations):
        tools, own = int(dice.choice([300, 500])), 0

        def turn(t: float, blocks: int, first: int) -> dict:
            ids = list(range(first, first + blocks))
            tokens = blocks * BLOCK + int(dice.integers(0, BLOCK))
            return {
                "t": t,
                "in": tokens,
                "out": 4,
                "hash_ids": ids,
                "api_time": 1.0,
                "think_time": float(dice.integers(0, 3)),
            }

        rows, blocks = [], 12
        for place in range(int(dice.integers(3, 9))):
            blocks += int(dice.integers(0, 9))
            own = 0 if place < 5 else 1000
            rows.append(turn(10.0 * place, blocks, own))
            if place == 2:
                agent = {"tool_tokens": tools, "system_tokens": 0, "duration_ms": 4000, "t": 10.0 * place + 8}
                rows += [
                    agent | {"requests": [turn(0, 5 + k, 2000 + 500 * k), turn(1, 7 + k, 2000 + 500 * k)]}
                    for k in range(2)
                ]
        made.append(
            {"id": f"c{number}", "block_size": BLOCK, "tool_tokens": tools, "system_tokens": 90, "requests": rows}
        )
    return made


def prompts_of(trace: dict) -> dict[str, tuple[int, list]]:
    """Return the tokens and the blocks of each prompt by the name that the simulation gives it, agents included."""

    same: dict[int, tuple] = {}  # blocks that conversations share, by their hash in this one

    def share(rows: list, tools: int, system: int) -> None:
        first = next(row["hash_ids"] for row in rows if "in" in row)
        for position, name in enumerate(first[: (tools + system) // BLOCK]):
            whole = (position + 1) * BLOCK <= tools
            same.setdefault(name, ("tools", tools, position) if whole else ("system", tools, system, position))
        for row in rows:
            if "requests" in row:
                share(row["requests"], row["tool_tokens"], row["system_tokens"])

    def name_prompts(rows: list, prefix: str) -> None:
        for place, row in enumerate(rows):
            if "requests" in row:
                name_prompts(row["requests"], f"{prefix}{place}.")
            else:
                blocks = [same.get(name, (trace["id"], name)) for name in row["hash_ids"]]
                found[f"{trace['id']}/{prefix}{place}"] = row["in"], blocks

    found: dict[str, tuple[int, list]] = {}
    share(trace["requests"], trace["tool_tokens"], trace["system_tokens"])
    name_prompts(trace["requests"], "")
    return found


def replay(order: list[str], prompts: dict[str, tuple[int, list]], capacity: float) -> list[int]:
    """Return the cached tokens of prompts in this order.

    The blocks that are found are used, the first of them last; then come the new ones; the least recently used go.
    """
    held: OrderedDict = OrderedDict()
    tokens = []
    for name in order:
        size, blocks = prompts[name]
        found = 0
        while found < min(len(blocks), (size - 1) // BLOCK) and blocks[found] in held:
            found += 1
        for block in reversed(blocks[:found]):
            held.move_to_end(block)
        for block in blocks[found:]:
            held.pop(block, None)
            held[block] = None
            while len(held) > capacity:
                held.popitem(last=False)
        tokens.append(found * BLOCK)
    return tokens


def served(session: Session, folder: Path, prompts: int | None = None, **flags: object) -> tuple[list[dict], dict]:
    asked = {"trace": str(folder), "block_size": BLOCK, "think_time_limit": 2, "num_prompts": prompts}
    run = session.simulate(model="qwen3-0.6b", gpu="h100_sxm", **asked, **flags)
    rows = run.table("request_events").to_pylist()
    assert {row["status"] for row in rows} == {"finished"}
    return sorted(rows, key=lambda row: (row["scheduled_ns"], row["sent_ns"], row["request_id"])), run.summary


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder, prompts = tmp_path_factory.mktemp("made"), {}
    for trace in recorded(7, 9):
        (folder / f"{trace['id']}.json").write_text(json.dumps(trace))
        prompts |= prompts_of(trace)
    return folder, prompts


def test_a_tier_without_limit_has_all_that_was_computed(session: Session, made: tuple[Path, dict]) -> None:
    folder, prompts = made
    rows, summary = served(session, folder, kv_tier="host:unlimited", sessions=4, kv_cache_tokens=4096)
    assert [row["cached_tokens"] for row in rows] == replay([row["external_id"] for row in rows], prompts, np.inf)
    (tier,) = summary["kv_tiers"]
    assert tier["hit_tokens"] == sum(row["tier_tokens"] for row in rows) > 0
    assert tier["evicted_bytes"] == 0
    found = sum(row["cached_tokens"] for row in rows) / sum(row["prompt_tokens"] for row in rows)
    assert summary["prefix_cache_hit_rate"] == pytest.approx(found)
    assert summary["device_hit_rate"] < summary["prefix_cache_hit_rate"]
    assert summary["sessions"]["n"] == summary["sessions"]["completed"] == 9


def test_a_tier_of_a_capacity_loses_the_least_recently_used(session: Session, made: tuple[Path, dict]) -> None:
    folder, prompts = made
    alone = {"sessions": 1, "max_num_seqs": 1, "kv_cache_tokens": 4096}
    block_bytes = served(session, folder, **alone, kv_tier="host:unlimited")[1]["kv_tiers"][0]["written_bytes"]
    blocks = len({block for _, own in prompts.values() for block in own})
    for share in (0.2, 0.5):
        capacity = int(blocks * share)
        rows, summary = served(session, folder, **alone, kv_tier=f"host:{block_bytes // blocks * capacity}")
        order = [row["external_id"] for row in rows]
        assert [row["cached_tokens"] for row in rows] == replay(order, prompts, capacity)
        assert summary["kv_tiers"][0]["evicted_bytes"] > 0


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded conversations are not there")
@pytest.mark.whole
def test_recorded_conversations(session: Session, tmp_path: Path) -> None:
    prompts = {}
    for path in sorted(RECORDED.glob("*.json.gz"))[:6]:
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["requests"] = trace["requests"][:20]
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(trace))
        prompts |= prompts_of(trace)
    flags = {"kv_tier": "host:unlimited", "sessions": 3, "max_model_len": 400_000, "kv_cache_tokens": 500_000}
    rows, _ = served(session, tmp_path, **flags, max_position_embeddings=400_000)
    assert [row["cached_tokens"] for row in rows] == replay([row["external_id"] for row in rows], prompts, np.inf)
