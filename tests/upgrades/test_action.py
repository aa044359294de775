"""The composite action of GitHub: its steps, run by bash as a runner runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

ACTION = Path(__file__).resolve().parents[2] / ".github" / "actions" / "upgrade" / "action.yml"
INPUTS = {
    "from": "vllm:0.24",
    "to": "vllm:0.31",
    "launch": "@serve.sh",
    "load": "--max-concurrency 1 --num-prompts 2 --input-len 64 --output-len 4",
    "flags": "--gpu h100_sxm",
    "page": "metrics.csv",
    "fail-if": "tpot_p50:+90% tpot_p50:-0.0001%",
}


def test_the_steps_answer_and_fail_beyond_a_limit(tmp_path: Path) -> None:
    action = yaml.safe_load(ACTION.read_text())
    inputs = {name: stated.get("default") for name, stated in action["inputs"].items()} | INPUTS
    assert None not in inputs.values() and set(INPUTS) <= set(action["inputs"])
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-0.6B --max-model-len 2048\n")
    install, upgrade = action["runs"]["steps"]
    assert install["run"] == 'python -m pip install --quiet "$PACKAGE"' and install["env"]["PACKAGE"]
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    own = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: inputs[found[1]], text)
        for name, text in upgrade["env"].items()
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", upgrade["run"]],
        cwd=tmp_path, env={**os.environ, **files, **own, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 3 and "beyond" in found.stderr, found.stderr
    written = Path(files["GITHUB_OUTPUT"]).read_text()
    answer = re.fullmatch(r"answer<<END_OF_ANSWER\n(.*)\nEND_OF_ANSWER\n", written, re.DOTALL)
    assert answer and json.loads(answer[1])["to"] == "vllm:0.31"
    assert Path(files["GITHUB_STEP_SUMMARY"]).read_text() == json.loads(answer[1])["answer"] + "\n"
    assert "tpot_p50_ms" in (tmp_path / "metrics.csv").read_text()
