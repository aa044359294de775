"""Step times as a function: the simulation's own steps to the nanosecond, and what cannot be a batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import kernelsight as ks
from kernelsight.errors import InvalidInput

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 8}
ADAPTED = FLAGS | {"enable_lora": True, "max_loras": 4}
WINDOWED = {"model": "gpt-oss-20b", "gpu": "h100_sxm", "max_num_seqs": 8}


def steps_and_batches(
    session: ks.Session, flags: dict, folder: Path
) -> tuple[np.ndarray, np.ndarray, list[list[tuple[int, int]]]]:
    """Return the lengths of a served load's steps, the energy of their kernels' work, and what each held, followed from
    its counts of tokens.

    Prompts are shorter than a step's budget, so that each is computed in one step.
    """
    dice = np.random.default_rng(3)
    requests = [
        {"arrival_s": n * 0.02, "prompt_tokens": int(p), "output_tokens": int(o)}
        for n, (p, o) in enumerate(zip(dice.integers(40, 900, 40), dice.integers(1, 30, 40), strict=True))
    ]
    trace = folder / "requests.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in requests), encoding="utf-8")
    run = session.simulate(**flags, trace=str(trace))
    waiting, running, batches = [(row["prompt_tokens"], row["output_tokens"]) for row in requests], [], []
    steps = run.table("steps").sort_by("start_ns")
    for prompts, decodes in zip(
        *(steps[name].to_pylist() for name in ("prefill_tokens", "decode_tokens")), strict=True
    ):
        assert decodes == len(running)
        batch = [(1, context) for context, _ in running]
        running = [(context + 1, left - 1) for context, left in running]
        while prompts > 0:
            prompt, output = waiting.pop(0)
            prompts -= prompt
            batch.append((prompt, 0))
            running.append((prompt, output - 1))
        assert prompts == 0
        running = [(context, left) for context, left in running if left > 0]
        batches.append(batch)
    assert not waiting and not running
    lengths_us = (steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy()) / 1e3
    return lengths_us, steps["dynamic_energy_j"].to_numpy(), batches


@pytest.mark.parametrize("flags", [FLAGS, WINDOWED, ADAPTED], ids=["full", "windowed", "adapters"])
def test_steps_of_a_simulation(session: ks.Session, flags: dict, tmp_path: Path) -> None:
    lengths_us, work_j, batches = steps_and_batches(session, flags, tmp_path)
    times = session.step_times(**flags)
    assert {"prefill", "decode", "mixed"} == {kind_of(batch) for batch in batches}
    new, past = np.concatenate([np.array(batch) for batch in batches]).T
    many = times((new, past, np.cumsum([0, *map(len, batches)])))
    np.testing.assert_allclose(many.latency_us, lengths_us, rtol=0.0, atol=1.01e-3)  # both ends are rounded
    single = [times(batch) for batch in batches]
    assert [each.latency_us for each in single] == many.latency_us.tolist()
    assert [each.p95_us for each in single] == many.p95_us.tolist()
    assert (many.p05_us < many.latency_us).all() and (many.latency_us < many.p95_us).all()
    assert [each.energy_j for each in single] == pytest.approx(many.energy_j.tolist())
    drawn = next(row for row in session.table("gpu_power").to_pylist() if row["gpu"] == flags["gpu"])
    free_w = drawn["idle_w"] + drawn["active_w"] + 1e6 * work_j / many.latency_us
    held_w = free_w / (1.0 + (free_w / drawn["cap_w"]) ** drawn["cap_sharpness"]) ** (1.0 / drawn["cap_sharpness"])
    # of a run of decodes the simulation writes the mean energy of its steps
    np.testing.assert_allclose(many.energy_j, held_w * many.latency_us / 1e6, rtol=1e-3)
    np.testing.assert_allclose(many.energy_j.sum(), (held_w * many.latency_us / 1e6).sum(), rtol=1e-6)


@pytest.mark.whole
def test_energy_is_that_of_all_gpus_under_their_limit(session: ks.Session) -> None:
    batch = [(1, 900)] * 8
    one = {"model": FLAGS["model"], "gpu": FLAGS["gpu"], "phase": "decode", "batch_size": 8, "context_len": 900}
    step, predicted = session.step_times(**FLAGS)(batch), session.predict(**one)
    assert step.energy_j == pytest.approx(predicted.as_dict()["energy_mj"] / 1e3, rel=0.02)
    pair = session.step_times(**FLAGS, tensor_parallel_size=2)(batch)
    assert pair.energy_j > step.energy_j
    limited = session.step_times(**FLAGS, power_limit_w=50)(batch)
    assert limited.energy_j < min(step.energy_j, 50 * limited.latency_us / 1e6)


def kind_of(batch: list[tuple[int, int]]) -> str:
    decodes = {new == 1 and past > 0 for new, past in batch}
    return "mixed" if len(decodes) == 2 else "decode" if decodes == {True} else "prefill"


def test_a_deployment_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ks.step_time(FLAGS, [(1, 100)])
    monkeypatch.setattr("kernelsight.session.connect", None)  # a second session would fail
    assert ks.step_time(dict(FLAGS), [(1, 100)]) == first
    assert first._fields == ("latency_us", "p05_us", "p95_us", "energy_j")


@pytest.mark.parametrize(
    "batch, message",
    [
        ([], "no sequence is in it"),
        ([(0, 5)], "at least 1 new token"),
        ([(1, -1)], "0 or more past tokens"),
        ([(1, 5, 7)], "a pair of new_tokens and past_tokens"),
        ([("a", 5)], "whole numbers of new_tokens"),
        ([(1.5, 5)], "whole numbers of new_tokens"),
        ([(1, float("nan"))], "whole numbers of new_tokens"),
        (([1, 1.5], [5, 5], [0, 2]), "whole numbers of new_tokens"),
        ((["a", "b"], [5, 5], [0, 2]), "whole numbers of new_tokens"),
        ([(1, 5)] * 9, "more sequences than max_num_seqs 8"),
        ([(5, 0)] * 9, "more sequences than max_num_seqs 8"),
        ([(100_000, 0)], "more new tokens than max_num_batched_tokens"),
        (([1, 1], [5], [0, 2]), "do not go together"),
        (([1, 1], [5, 5], [0, 3]), "do not go together"),
        (([1, 1], [5, 5], [0, 2, 1]), "offsets of the batches fall"),
        (([1, 1], [5, 5], [0, 2, 2]), "batch 1: no sequence"),
    ],
)
def test_refusals(batch: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ks.step_time(FLAGS, batch)


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"pipeline_parallel_size": 2}, "pipeline stages has no time of its own"),
        ({"speculative_method": "ngram", "num_speculative_tokens": 2}, "speculative decoding has no time"),
        ({"prefill_replicas": 1}, "P/D disaggregation is no single engine"),
    ],
)
def test_deployments_without_a_step_time(session: ks.Session, flags: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        session.step_times(**FLAGS, **flags)


def test_what_is_no_deployment() -> None:
    with pytest.raises(InvalidInput, match="neither flags such as"):
        ks.step_time("qwen3-0.6b", [(1, 1)])
