"""``--moe-backend``: the kernel of the routed experts that a launch script names, and a name that does not exist."""

from __future__ import annotations

STEP = (
    *("predict", "--model", "gpt-oss-120b", "--gpu", "h200_sxm", "-tp", 2, "--phase", "decode", "--batch-size", 32),
    *("--context-len", 1024, "--format", "json"),
)


def experts(answer) -> dict:
    """Return the row of the routed experts."""
    assert answer.status == 0, answer.err
    return next(kernel for kernel in answer.json["kernels"] if kernel["family"] == "moe")


def test_the_named_kernel_answers(command) -> None:
    times = {}
    for backend in ("triton_kernels_moe", "marlin_moe"):
        row = experts(command(*STEP, "--moe-backend", backend))
        assert backend in row["evidence"]
        times[backend] = row["latency_us"]
    assert len(set(times.values())) == 2


def test_a_kernel_measured_on_one_layer_that_is_unlike_others_takes_the_constants_of_all_its_sweeps(command) -> None:
    """Marlin in MXFP4: 896 experts, 16 a token, where gpt-oss has 128 and 4."""
    row = experts(command(*STEP, "--moe-backend", "marlin_moe"))
    assert row["evidence"] == "sweeps of other layers: marlin_moe"
    row = experts(command(*STEP, "--moe-backend", "triton_kernels_moe"))
    assert row["evidence"] == "sweep of h200_sxm: triton_kernels_moe"


def test_experts_in_mxfp4_run_what_was_measured_in_mxfp4(command) -> None:
    row = experts(command(*STEP, "--engine", "trtllm"))
    assert row["evidence"] == "sweep of h200_sxm: triton_kernels_moe"
