"""What the CUDA kernels compute, on threads of the CPU: a kernel that is wrong would be timed in vain."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernelsight.measure.cuda.buffers import ATTENTION, SOURCE

EMULATION = Path(__file__).parent / "streaming_on_threads.cpp"
# half a step of bf16 (8 bits) and of E4M3 (4 bits), with what rounding before it adds
BF16, E4M3 = 2.0**-8 + 4e-3, 2.0**-4
WORST = {
    **dict.fromkeys(("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "rope_neox"), BF16),
    **dict.fromkeys(("quantize_per_tensor", "quantize_per_token", "quantize_per_block"), E4M3),
    **dict.fromkeys(("paged_decode", "paged_decode_fp8", "paged_prefill", "paged_mla_decode", "grouped_product"), BF16),
    "softmax": 1e-5,
    "argmax": 0.0,
    "top_k_top_p": 0.0,
}


@pytest.mark.whole
def test_kernels_compute_what_they_are_called_by(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to compile the emulation with")
    program = tmp_path / "emulation"
    words = [compiler, "-std=c++20", "-O1", "-pthread", "-w", f'-DSTREAMING="{SOURCE}"', f'-DATTENTION="{ATTENTION}"']
    words += [str(EMULATION), "-o"]
    built = subprocess.run([*words, str(program)], capture_output=True, text=True)
    if "barrier" in built.stderr and "No such file" in built.stderr:
        pytest.skip("this g++ has no <barrier> of C++20")
    assert built.returncode == 0, built.stderr
    printed = subprocess.run([str(program)], capture_output=True, text=True, timeout=600)
    assert printed.returncode == 0, printed.stderr
    found = {name: float(value) for name, value in map(str.split, printed.stdout.splitlines())}
    assert set(found) == set(WORST)
    for name, worst in WORST.items():
        assert found[name] <= worst, name
