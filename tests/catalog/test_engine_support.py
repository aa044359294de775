"""Which engines exist for which GPUs."""

from __future__ import annotations

from kernelsight.session import Session, connect

ENGINES = {"vllm", "sglang", "trtllm"}


def test_every_gpu_of_the_catalogue_has_a_row_of_every_engine(session: Session) -> None:
    gpus = session.table("gpus")["gpu"].to_pylist()
    rows = session.table("gpu_engines").to_pylist()
    assert sorted((row["gpu"], row["engine"]) for row in rows) == sorted(
        (gpu, each) for gpu in gpus for each in ENGINES
    )
    assert all((row["says"] is None) == (row["support"] == "documented") for row in rows)
    assert all("{" not in (row["says"] or "") for row in rows)


def test_what_engines_document(session: Session) -> None:
    support = {(row["engine"], row["gpu"]): row["support"] for row in session.table("gpu_engines").to_pylist()}
    cases = {
        "documented": [("vllm", "h100_sxm"), ("trtllm", "b200_sxm"), ("sglang", "mi300x"), ("vllm", "b60")],
        "undocumented": [("vllm", "v100_sxm"), ("vllm", "mi100"), ("sglang", "mi250x"), ("trtllm", "t4")],
        "separate": [("vllm", "gaudi2"), ("vllm", "gaudi3"), ("sglang", "gaudi3")],
        "none": [("trtllm", "mi300x"), ("trtllm", "mi355x"), ("trtllm", "gaudi2"), ("trtllm", "b60")],
    }
    assert {kind: [support[pair] for pair in pairs] for kind, pairs in cases.items()} == {
        kind: [kind] * len(pairs) for kind, pairs in cases.items()
    }


def test_a_gpu_of_a_users_own_has_its_vendors_engines() -> None:
    with connect() as session:
        like = next(row for row in session.table("gpus").to_pylist() if row["gpu"] == "mi300x")
        session.extend("gpus", [{**like, "gpu": "own"}])
        support = {
            row["engine"]: row["says"] for row in session.table("gpu_engines").to_pylist() if row["gpu"] == "own"
        }
    assert support == {"vllm": None, "sglang": None, "trtllm": "TensorRT-LLM does not exist for own"}
