"""Engine versions that are not modelled, or newer than every sweep, are answered, and said."""

from __future__ import annotations

import pytest

from kernelsight.session import connect

NEWER = "is newer than"
OLDER = "is before vllm 0.8: the engine before V1"


@pytest.mark.parametrize(
    ("engine", "version", "says"),
    [
        ("vllm", "0.7.2", OLDER),
        ("vllm", "0.8", None),
        ("vllm", "0.31", None),
        ("vllm", "9.9", NEWER),
        ("sglang", "0.5.20", None),
        ("sglang", "0.6", NEWER),
        ("trtllm", "1.3.0rc23", None),
        ("trtllm", "1.3.0", NEWER),
        ("vllm", None, None),
    ],
)
def test_predict_says_which_version_stands_in(engine: str, version: str | None, says: str | None) -> None:
    with connect() as session:
        flags = {"model": "qwen3-0.6b", "gpu": "l4", "engine": engine, "engine_version": version}
        step = session.predict(**flags, phase="decode", batch_size=1, context_len=100)
    said = [sentence for sentence in step.assumed if sentence.startswith("engine_version ")]
    assert len(said) == (says is not None) and all(says in sentence and version in sentence for sentence in said)


def test_simulate_says_it_too() -> None:
    with connect() as session:
        load = {"request_rate": 1.0, "num_prompts": 5, "input_len": 10, "output_len": 5}
        run = session.simulate(model="qwen3-0.6b", gpu="l4", engine_version="9.9", **load)
        assert any(NEWER in sentence for sentence in run.summary["assumed"])
