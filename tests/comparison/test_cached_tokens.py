"""Cached tokens have no noise of clocks: what the replay finds in its cache against what a server reported."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import LOAD, Replayed, Variant, conformed
from kernelsight.logs import read_logs
from kernelsight.session import Session, connect
from tests.comparison.test_comparison import FLAGS, log_of

N, BLOCK, START = 400, 16, 1_790_000_000.0


def shared(conversations: bool) -> pa.Table:
    """Prompts of whole blocks: of four system prompts, or of conversations whose turns repeat what was said before."""
    dice = np.random.default_rng(11)
    own, lists = 100_000, []
    said: dict[int, list[int]] = {}
    for _ in range(N):
        group = int(dice.integers(0, 40 if conversations else 4))
        new = int(dice.integers(4, 60))
        blocks = list(range(own, own + new))
        own += new
        before = said.get(group, []) if conversations else [1000 * group + b for b in range(24 + 8 * group)]
        lists.append(before + blocks)
        if conversations:
            said[group] = lists[-1] if len(lists[-1]) < 300 else []
    columns = {"load_id": [LOAD] * N, "request_id": np.arange(N), "arrival_s": np.arange(N) / 6.0}
    columns |= {"prompt_tokens": [BLOCK * len(one) for one in lists], "output_tokens": dice.integers(20, 120, N)}
    columns |= {"hash_ids": pa.array(lists, pa.list_(pa.int64())), "hash_block_tokens": np.full(N, BLOCK)}
    return conformed(columns)


@cache
def served_on(conversations: bool) -> Replayed:
    """Return how the deployment serves them."""
    with connect() as own:
        return LogReplayer(own, shared(conversations)).serve([Variant(FLAGS)])[0]


def aiperf(path: Path, load: pa.Table, served: Replayed) -> Path:
    """Write requests as AIPerf does, with the cached tokens of the API's usage, which vLLM states."""
    rows = []
    for number, (sent, prompt, output) in enumerate(
        zip(*(load[name].to_pylist() for name in ("arrival_s", "prompt_tokens", "output_tokens")), strict=True)
    ):
        start = int((START + sent) * 1e9)
        ms = {"time_to_first_token": served.ttft_ms[number], "request_latency": served.e2e_ms[number]}
        tokens = {"input_sequence_length": prompt, "output_sequence_length": output}
        tokens |= {"usage_prompt_tokens": prompt, "usage_prompt_cache_read_tokens": int(served.cached_tokens[number])}
        metrics = {name: {"value": float(value), "unit": "ms"} for name, value in ms.items()}
        metrics |= {name: {"value": value, "unit": "tokens"} for name, value in tokens.items()}
        meta = {"x_request_id": f"r{number}", "benchmark_phase": "profiling", "was_cancelled": False}
        meta |= {"credit_issued_ns": start, "request_start_ns": start}
        meta |= {"request_end_ns": start + int(served.e2e_ms[number] * 1e6)}
        rows.append(json.dumps({"metadata": meta, "metrics": metrics, "error": None}))
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("conversations", [False, True])
@pytest.mark.parametrize("written", ["table", "client"])
def test_reported_cached_tokens_are_found_again(
    session: Session,
    tmp_path: Path,
    conversations: bool,
    written: str,
) -> None:
    load, served = shared(conversations), served_on(conversations)
    reported = served.cached_tokens
    assert 0.2 < reported.sum() / load["prompt_tokens"].to_numpy().sum() < 0.95
    if written == "client":
        asked = {"log": aiperf(tmp_path / "profile_export.jsonl", load, served)}
        kept = read_logs(asked["log"])["production_requests"]["cached_tokens"].to_pylist()
        assert kept == reported.tolist()
    else:
        asked = {"requests": log_of(load, served).append_column("cached_tokens", pa.array(reported))}
    # the log does not say which prompts share what: cached tokens alone are replayed
    found = session.compare(deployment=FLAGS, fit="none", suspects="none", **asked)
    rows = found.table("prediction_vs_production")
    measured, predicted = (rows[f"{name}_cached_tokens"].to_numpy() for name in ("measured", "predicted"))
    assert predicted.sum() == pytest.approx(measured.sum(), rel=0.01)
    assert found.summary["cached_tokens"] == {"measured": measured.sum(), "predicted": predicted.sum()}
    # and of almost every request
    assert np.mean(predicted == measured) > 0.95
