"""The composite action of GitHub: its steps, run by bash as a runner runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "actions" / "upgrade"
ACTION = yaml.safe_load((FOLDER / "action.yml").read_text())
INPUTS = {
    "launch": "@serve.sh",
    "load": "--max-concurrency 1 --num-prompts 2\n  --input-len 64 --output-len 4",
    "flags": "--gpu h100_sxm",
}


def run_step(number: int, folder: Path, inputs: dict[str, str], **more: str) -> tuple[int, str, str, str]:
    """Run a step with inputs; return its status, stderr, and what it wrote to the job's summary and outputs."""
    values = {name: stated.get("default") for name, stated in ACTION["inputs"].items()} | inputs
    assert None not in values.values() and set(inputs) <= set(ACTION["inputs"])
    (folder / "serve.sh").write_text("docker run vllm/vllm-openai:v0.24.0 --model Qwen/Qwen3-0.6B --max-num-seqs 8\n")
    step = ACTION["runs"]["steps"][number]
    files = [folder / "summary", folder / "output"]
    for file in files:
        file.write_text("")
    env = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: values[found[1]], text)
        for name, text in step["env"].items()
    }
    env |= {"GITHUB_STEP_SUMMARY": str(files[0]), "GITHUB_OUTPUT": str(files[1]), "GITHUB_ACTION_PATH": str(FOLDER)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder, env={**os.environ, **env, **more}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.returncode, found.stderr, *(file.read_text() for file in files)


def test_a_version_beyond_a_limit_fails_and_the_summary_says_which(tmp_path: Path) -> None:
    inputs = {"to": "vllm/vllm-openai:v0.31.0", "page": "metrics.csv", "fail-if": "tpot_p50:+90% tpot_p50:-0.0001%"}
    status, errors, summary, output = run_step(1, tmp_path, INPUTS | inputs)
    assert status == 3 and "beyond" in errors, errors
    written = re.fullmatch(r"answer<<END_OF_ANSWER\n(.*)\nEND_OF_ANSWER\n", output, re.DOTALL)
    assert written
    answer = json.loads(written[1])
    assert (answer["from"], answer["to"]) == ("vllm:0.24.0", "vllm/vllm-openai:v0.31.0")
    (failed,) = answer["failed"]
    assert failed.startswith("tpot_p50_ms changes by -") and failed.endswith(", beyond -0.0%")
    assert summary.startswith(f"{answer['answer']}\n\n**Beyond its limit:** {failed}.\n\n| metric | before |")
    assert all(f"\n| {name} | " in summary for name in answer["metrics"])
    assert "tpot_p50_ms" in (tmp_path / "metrics.csv").read_text()


def test_a_changed_launch_line_is_gated(tmp_path: Path) -> None:
    after = "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 8 --enforce-eager"
    status, errors, summary, _ = run_step(1, tmp_path, INPUTS | {"launch-after": after, "fail-if": "tpot_p50:+5%"})
    assert status == 3, errors
    assert summary.startswith("vllm:0.24.0 to vllm:0.24.0: ") and "Changed: --enforce-eager unset to true." in summary


def test_an_error_is_the_products_sentence_and_status(tmp_path: Path) -> None:
    status, errors, summary, output = run_step(1, tmp_path, INPUTS | {"launch": "@nofile.sh"})
    sentence = "the launch file nofile.sh does not exist"
    assert (status, output) == (2, "") and sentence in errors and sentence in summary
    assert "Traceback" not in errors


@pytest.mark.whole
def test_the_actions_own_checkout_is_installed(tmp_path: Path) -> None:
    """Without an index: a name that anybody may claim is never asked for."""
    pip = {"PIP_DRY_RUN": "1", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    pip |= {"PIP_REPORT": str(tmp_path / "report.json"), "PIP_IGNORE_INSTALLED": "1"}
    status, errors, *_ = run_step(0, tmp_path, INPUTS, **pip)
    assert status == 0, errors
    (installed,) = json.loads((tmp_path / "report.json").read_text())["install"]
    assert installed["download_info"]["url"] == ROOT.as_uri() and installed["metadata"]["name"] == "kernelsight"
    assert installed["requested_extras"] == ["report"]
