"""Which deployments are searched."""

from __future__ import annotations

from kernelsight.session import Session
from kernelsight.sizing.candidates import planned_candidates, rows_of

from .conftest import LOAD

SIZES = ("tensor_parallel_size", "data_parallel_size", "expert_parallel_size")


def sizes(session: Session, most: int = 4, **flags: object) -> set[tuple]:
    rows = rows_of(session, flags, ["h100_sxm"], most, {})
    return {tuple(row.get(name, 1) for name in SIZES) for row in rows}


def test_dense_models_are_split_over_tensors_alone(session: Session) -> None:
    assert sizes(session, model="qwen3-8b") == {(1, 1, 1), (2, 1, 1), (4, 1, 1)}
    assert sizes(session, model="qwen3-8b", tensor_parallel_size=2) == {(2, 1, 1)}
    assert sizes(session, model="qwen3-8b", pipeline_parallel_size=2) == {(1, 1, 1), (2, 1, 1)}


def test_experts_are_spread_and_attention_replicated(session: Session) -> None:
    found = sizes(session, model="qwen3-30b-a3b")
    assert found == {(1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 1, 2), (4, 1, 4), (1, 2, 2), (1, 4, 4), (2, 2, 4)}
    assert sizes(session, model="qwen3-30b-a3b", data_parallel_size=2) == {(1, 2, 2), (2, 2, 4)}


def test_a_launch_line_states_flags(session: Session) -> None:
    rows = rows_of(session, {"launch": "vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 64"}, ["h100_sxm"], 4, {})
    assert [(row["tensor_parallel_size"], row["max_num_seqs"]) for row in rows] == [(2, 64)]


def test_an_instance_counts_all_its_gpus(session: Session) -> None:
    flags = {"model": "qwen3-8b", "tensor_parallel_size": 2, "prefill_replicas": 3, "prefill_gpu": "l40s"}
    flags |= {"decode_replicas": 2, "prefill_tensor_parallel_size": 1}
    with session.fork() as fork:
        rows = rows_of(fork, flags, ["h100_sxm"], 8, {})
        load = LOAD | {"num_prompts": 1000, "request_rate": 1.0}
        _, (candidate,) = planned_candidates(fork, rows, load, {"h100_sxm": 2.0, "l40s": 1.0})
    assert candidate.gpus == {"h100_sxm": 4, "l40s": 3} and candidate.price == 11.0 and candidate.gpu_count == 7
