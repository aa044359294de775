"""``simulate --advise``: changes of one setting on the page and in the JSON."""

from __future__ import annotations

import pytest

from kernelsight.present.pages.simulate import simulation_page
from kernelsight.present.terminal import lines_of

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 64, "input_len": 64, "output_len": 32}
SHORT = {**FLAGS, "max_concurrency": 32, "max_num_seqs": 4}


@pytest.mark.whole
def test_the_page_says_what_moves_and_what_is_lost(command):
    words = [word for name, value in SHORT.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    answer = command("simulate", *words, "--advise", "--format", "json").json
    page = "\n".join(lines_of(simulation_page(answer)))
    assert "changes of one setting that help, simulated on the same requests:\n  max_num_seqs 4 to " in page
    numeric = [line for line in page.splitlines() if line.startswith(("  quantization", "  kv_cache"))]
    assert all("check the quality of answers" in line for line in numeric)
