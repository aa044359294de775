"""Names of GPUs: as nvidia-smi prints them, short ones that leave the board open, instances of clouds."""

from __future__ import annotations

import pytest

from kernelsight.catalog.gpu_names import find_gpu
from kernelsight.catalog.tables import facts
from kernelsight.errors import UnknownName
from kernelsight.scenario.scenario_rows import gpu_assumptions, resolve_gpu
from kernelsight.session import connect


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA-A100-SXM4-40GB", "a100_sxm_40gb"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie"),
        ("nvidia_h200_nvl", "h200_nvl"),
        ("A100-80GB", "a100_sxm"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Standard_ND96isr_H200_v5", "h200_sxm"),
        ("a3-highgpu-8g", "h100_sxm"),
        ("a2-highgpu-1g", "a100_sxm_40gb"),
        ("g5.xlarge", "a10g"),
        ("nvidia-l4", "l4"),
        ("H100-SXM", "h100_sxm"),
        ("RTX PRO 6000 Server", "rtx_pro_6000_server"),
        ("Tesla V100-SXM2-16GB", None),
    ],
)
def test_names(name, gpu):
    found = find_gpu(name)
    assert (found and found.gpu) == gpu


def test_names_of_one_gpu_assume_nothing_and_short_ones_say_what():
    assert [find_gpu(name).assumed for name in ("H100 PCIe", "h100_sxm", "p5.48xlarge", "NVIDIA H200")] == [None] * 4
    for name in ("H100", "A100", "V100", "H200"):
        others = find_gpu(name).assumed.partition(":")[2]
        assert others, name
        assert all(part.strip() in facts("gpus")["gpu"].to_pylist() for part in others.split(","))


def test_no_alias_is_another_gpu_s_own_name():
    own = {row["gpu"]: row["gpu"] for row in facts("gpus").to_pylist()}
    for row in facts("gpu_aliases").to_pylist():
        assert own.get(row["alias"].lower().replace("-", "_"), row["gpu"]) == row["gpu"], row


def test_the_session_s_gpus_come_first():
    with connect() as session:
        row = session.table("gpus").to_pylist()[0] | {"gpu": "H100"}
        assert resolve_gpu(session, "H100") == "h100_sxm"
        assert gpu_assumptions(session, {"gpu": "H100", "prefill_gpu": "h100_pcie"}) == [
            "H100 is read as h100_sxm: the SXM5 board with 80 GB is assumed; others: h100_pcie, h100_nvl"
        ]
        assert gpu_assumptions(session, {"gpu": "NVIDIA L4"}) == ["NVIDIA L4 is read as l4"]
        session.extend("gpus", [row])
        assert resolve_gpu(session, "H100") == "H100"
        assert gpu_assumptions(session, {"gpu": "H100"}) == []
        with pytest.raises(UnknownName, match="unknown GPU 'TPU v5e'"):
            resolve_gpu(session, "TPU v5e")


def test_what_if_says_which_names_of_a_grid_are_others_in_its_tables():
    load = {"max_concurrency": 1, "num_prompts": 2, "input_len": 16, "output_len": 2, "model": "qwen3-0.6b"}
    with connect() as session:
        found = session.what_if(load | {"gpu": ["a100", "l4"]})
    assert set(found.summary["gpu"].to_pylist()) == {"a100_sxm", "l4"}
    (sentence,) = found.assumed
    assert sentence.startswith("a100 is read as a100_sxm: ") and sentence in str(found)
