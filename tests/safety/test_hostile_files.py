"""Files that a stranger wrote, of each form: one sentence, and none waits or fills the memory."""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelsight.logs import read_logs
from kernelsight.serving.load.recorded_loads import read_trace
from tests.files.test_bounded_values import alias_bomb
from tests.special_files import SPECIAL, special_file

PREDICT = ("predict", "--gpu", "h100_sxm", "--phase", "decode", "--context-len", "9")
LOG = "arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms\n5,100,11,40,90\n"


MANIFEST = """apiVersion: v1
kind: Pod
spec:
  containers:
  - name: server
    image: vllm/vllm-openai:v0.10.0
    args: [--model, Qwen/Qwen3-0.6B]
"""
# what a manifest is, and what the sentence says
MANIFESTS = {
    "anchors within themselves": ("apiVersion: v1\nx: &a [*a]\n", "(line 2: the anchor 'a' contains itself)"),
    "maps within themselves": ("apiVersion: v1\nx: &a {b: *a}\n", "(line 2: the anchor 'a' contains itself)"),
    "depth": ("apiVersion: v1\nx: " + "[" * 5000, "nests deeper than 100 levels (line 2)"),
    "date": ("apiVersion: v1\nd: 2020-13-45\n", "(line 2: no valid timestamp)"),
    "whole number": ('apiVersion: v1\nx: !!int "zz"\n', "(line 2: no valid int)"),
    "number": ('apiVersion: v1\nx: !!float "zz"\n', "(line 2: no valid float)"),
    "time": ('apiVersion: v1\nx: !!timestamp "zz"\n', "(line 2: no valid timestamp)"),
    "code": ("apiVersion: v1\nx: !!python/object/apply:os.system [ls]\n", "(line 2: could not determine a constructor"),
    "lists of aliases": ("apiVersion: v1\n" + alias_bomb("lists", 9), "holds more than 100,000 values (line 7)"),
    "maps of aliases": ("apiVersion: v1\n" + alias_bomb("maps", 9), "holds more than 100,000 values (line 7)"),
    "args": (MANIFEST.replace("[--model, Qwen/Qwen3-0.6B]", "5"), "whose args is no text and no list of texts"),
    "args of args": (MANIFEST.replace("[--model", "[[--model]"), "whose args is no text and no list of texts"),
    "command": (f"{MANIFEST}    command: {{a: b}}\n", "whose command is no text and no list of texts"),
    "env": (f"{MANIFEST}    env: 5\n", "whose env is no list of variables and no mapping of names and values"),
    "entries of env": (f"{MANIFEST}    env: [5]\n", "whose env is no list of variables"),
    "resources": (f"{MANIFEST}    resources: 5\n", "whose resources is no mapping"),
    "limits": (f"{MANIFEST}    resources: {{limits: [1]}}\n", "whose limits is no mapping"),
    "variables that double": (
        "A0=xxxxxxxx\n" + "".join(f"A{n}=$A{n - 1}$A{n - 1}\n" for n in range(1, 40)) + "vllm serve $A39\n",
        "the variables of the launch line make it longer than 262,144 characters",
    ),
    "arrays that double": (
        "A=(x y)\n" + "A=(${A[@]} ${A[@]})\n" * 60 + "vllm serve m ${A[@]}\n",
        "the arrays of the launch line make it too long",
    ),
    "services that extend each other": (
        "services:\n" + "".join(f"  s{n}: {{extends: s{n + 1}, image: x}}\n" for n in range(3000)),
        "has a service that extends 's21'",
    ),
    "programs that nest": (
        "from vllm import LLM\nx=" + "+".join(["1"] * 60_000) + "\nLLM('m')\n",
        "is a program that nests too deep",
    ),
    "variables in many lines": (
        "A=" + "x" * 100_000 + "\n" + "$A\n" * 50_000,
        "make it longer than 262,144 characters",
    ),
    "a long script": ("vllm serve m " + "--port 80 " * 200_000, "the launch line has 2,000,013 characters"),
    "shells without end": ("sh " * 20_000, "starts no known server"),
    "lines without end": ("\n" * 2_000_000, "the launch line has 2,000,000 characters"),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_launch_files_that_are_refused(case: str, tmp_path: Path, refusal: Callable, in_time: None) -> None:
    text, found = MANIFESTS[case]
    (tmp_path / "pod.yaml").write_text(text)
    sentence = refusal(*PREDICT, "--launch", f"@{tmp_path / 'pod.yaml'}")
    assert found in sentence and len(sentence) < 500


def test_the_sound_manifest_is_read(tmp_path: Path, command: Callable) -> None:
    sound = f"{MANIFEST}    env: [{{name: A, value: b}}, C=d]\n    resources: {{limits: {{nvidia.com/gpu: 1}}}}\n"
    (tmp_path / "pod.yaml").write_text(sound)
    answer = command(*PREDICT, "--launch", f"@{tmp_path / 'pod.yaml'}", "--format", "json")
    assert answer.status == 0, answer.err


OPTIONS = {
    "date": ("model: 2020-13-45\n", "is not YAML (line 1)"),
    "depth": ("model: " + "[" * 5000, "nests deeper than 100 levels (line 1)"),
    "anchors within themselves": ("model: &a [*a]\n", "is not YAML (line 1)"),
    "aliases": (alias_bomb("lists", 9), "holds more than 10,000 values (line 5)"),
    "long texts": ("a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 900 + "1]", "holds more than 10,000 values (line 2)"),
    "many options": ("".join(f"k{n}: 1\n" for n in range(20_000)), "holds more than 10,000 values"),
}


@pytest.mark.parametrize("option", ["vllm serve m --config", "trtllm-serve m --extra_llm_api_options"])
@pytest.mark.parametrize("case", OPTIONS)
def test_option_files_that_are_refused(
    case: str, option: str, tmp_path: Path, refusal: Callable, in_time: None
) -> None:
    text, found = OPTIONS[case]
    (tmp_path / "options.yaml").write_text(text)
    sentence = refusal(*PREDICT, "--launch", f"{option} {tmp_path / 'options.yaml'}", "--read-launch-files")
    assert str(tmp_path / "options.yaml") in sentence and found in sentence and len(sentence) < 500


@pytest.mark.parametrize("kind", SPECIAL)
def test_option_files_are_regular_ones(kind: str, tmp_path: Path, refusal: Callable, in_time: None) -> None:
    path = special_file(tmp_path / "options.yaml", kind)
    sentence = refusal(*PREDICT, "--launch", f"vllm serve m --config {path}", "--read-launch-files")
    assert f"{path} of --config {SPECIAL[kind]}" in sentence


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ('{"a":' * 3000 + "1" + "}" * 3000, "--speculative-config of the launch line nests deeper than 100 levels"),
        ('{"method": 1, "method": 2}', "'method' occurs twice; keep one"),
        ('{"num_speculative_tokens": ' + "9" * 5000 + "}", "--speculative-config of the launch line is not JSON"),
    ],
)
def test_json_within_a_launch_line_is_bounded(value: str, found: str, refusal: Callable) -> None:
    sentence = refusal(*PREDICT, "--launch", f"vllm serve m --speculative-config {shlex.quote(value)}")
    assert found in sentence and len(sentence) < 500


def test_fields_of_a_config_that_nest_too_deep_are_no_setting(command: Callable) -> None:
    deep = "[" * 3000 + "]" * 3000
    answer = command(*PREDICT, "--launch", f"vllm serve Qwen/Qwen3-0.6B --hf-overrides '{deep}'")
    assert answer.status == 0, answer.err


def bomb(row: str, rows: int) -> bytes:
    return gzip.compress((row * rows).encode())


@pytest.mark.parametrize("name", ["l.csv.gz", "l.jsonl.gz", "l.json.gz", "l.txt.gz"])
def test_a_packed_log_that_unpacks_to_far_too_much_is_refused(name: str, tmp_path: Path, in_time: None) -> None:
    record = json.dumps({"arrival_s": 1.0, "prompt_tokens": 9, "output_tokens": 3, "ttft_ms": 5.0, "e2e_ms": 9.0})
    rows = {"l.csv.gz": LOG, "l.jsonl.gz": f"{record}\n", "l.json.gz": "[[],[]," * 6, "l.txt.gz": "# TYPE vllm:a\n"}
    (tmp_path / name).write_bytes(bomb(rows[name], (40 << 20) // len(rows[name])))
    with pytest.raises(Exception, match="unpacks to more than .* Where it is sound, unpack it first"):
        read_logs(tmp_path / name)


def test_a_packed_trace_that_unpacks_to_far_too_much_is_refused(tmp_path: Path, in_time: None) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n" + b"0,1,1\n" * (5 << 20)))
    with pytest.raises(Exception, match="the file unpacks to more than .* Where it is sound, unpack it first"):
        read_trace(path)
    path.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n" + b"0,1,1\n" * 100_000))
    assert read_trace(path).num_rows == 100_000


def test_a_name_with_patterns_is_that_file_alone(tmp_path: Path) -> None:
    for name, rows in (("day[1].csv", 1), ("day*.csv", 2), ("day1.csv", 3)):
        (tmp_path / name).write_text(LOG + "6,100,11,40,90\n" * rows)
    for name, rows in (("day[1].csv", 1), ("day*.csv", 2), ("day1.csv", 3)):
        assert read_logs(tmp_path / name)["production_requests"].num_rows == 1 + rows


def test_a_log_names_no_other_file(tmp_path: Path) -> None:
    """A text that begins with @ is no name of a launch file where it is found in a folder of logs."""
    script = tmp_path / "start vllm.sh"
    script.write_text("vllm serve Qwen/Qwen3-8B --max-num-seqs 7\n")
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "log.csv").write_text(LOG)
    (folder / "a.txt").write_text(f"@{script}")
    tables = read_logs(folder)
    assert tables["production_settings"].num_rows == 0
