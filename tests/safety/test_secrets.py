"""A secret in a pasted launch line is in nothing that is printed, saved or passed on."""

from __future__ import annotations

import json
import sys
import urllib.error
from pathlib import Path

import duckdb
import pytest

import kernelsight as ks
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.files.redaction import REDACTED
from kernelsight.logs.settings import flat_settings
from kernelsight.present.html import page as pages
from kernelsight.searching.llm import client as llm_client
from tests.asked import refusals
from tests.cli.conftest import run_command

SECRET = "S3CRETx9"
LINE = (
    f"DB_PASSWORD={SECRET} HF_TOKEN={SECRET} vllm serve Qwen/Qwen3-0.6B --max-num-seqs 8 --api-key {SECRET} "
    f"--otlp-traces-endpoint http://user:{SECRET}@h/?token={SECRET} --middleware 'Authorization: Bearer {SECRET}' "
    f"""--kv-transfer-config '{{"kv_role": "kv_both", "password": "{SECRET}"}}'"""
)
LOAD = ("--gpu", "l4", "--max-concurrency", 2, "--num-prompts", 4, "--isl", 64, "--osl", 4)


@pytest.fixture(scope="module")
def as_command():
    """Run words as a process would, whose arguments are also what the run keeps of its command."""

    def run(*words):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["kernelsight", *map(str, words)])
            return run_command(*words)

    return run


@pytest.fixture(scope="module")
def saved_run(as_command, tmp_path_factory):
    """The saved run of a line with secrets, and what the command printed."""
    target = tmp_path_factory.mktemp("secrets") / "run.duckdb"
    return target, as_command("simulate", "--launch", LINE, *LOAD, "--format", "json", "-o", target)


def tables_with(words: list[str], path: Path) -> list[list[str]]:
    """Return for each word the tables of a saved run that have it in a row."""
    with duckdb.connect(str(path), read_only=True) as saved:
        names = [name for (name,) in saved.execute("select table_name from duckdb_tables()").fetchall()]
        query = f"select {', '.join(['coalesce(bool_or(contains(row::varchar, ?)), false)'] * len(words))}"
        rows = [saved.execute(f'{query} from "{name}" as row', words).fetchall()[0] for name in names]
    return [[name for name, found in zip(names, column, strict=True) if found] for column in zip(*rows, strict=True)]


def test_a_run_prints_and_keeps_no_secret(as_command, saved_run, tmp_path):
    target, answer = saved_run
    assert answer.status == 0 and SECRET not in answer.out + answer.err
    assert REDACTED in answer.err and REDACTED in str(answer.json["launch"])
    secret, redacted = tables_with([SECRET, REDACTED], target)
    assert secret == [] and "run_info" in redacted
    with duckdb.connect(str(target), read_only=True) as saved:
        ((command,),) = saved.execute("select value from run_info where fact = 'command'").fetchall()
    assert command.startswith("kernelsight simulate --launch ") and command.count(REDACTED) == 7
    as_command("timeline", target, "-o", tmp_path / "trace.json")
    assert SECRET not in (tmp_path / "trace.json").read_text()


def test_a_page_shows_no_secret(as_command, saved_run, tmp_path, monkeypatch):
    pytest.importorskip("jinja2", reason="the extra `report` is not installed")
    monkeypatch.setattr(pages, "chart_library", lambda: "window.drawChart = () => {};")
    page = tmp_path / "run.html"
    assert as_command("report", saved_run[0], "-o", page).status == 0
    assert SECRET not in page.read_text() and "kernelsight simulate" in page.read_text()


@pytest.mark.whole
def test_a_grid_of_lines_prints_and_keeps_no_secret(as_command, tmp_path):
    grid, target = tmp_path / "grid.json", tmp_path / "sweep.duckdb"
    load = {"gpu": "l4", "max_concurrency": 2, "num_prompts": 4, "input_len": 64, "output_len": 4}
    grid.write_text(json.dumps({**load, "launch": [LINE, LINE.replace("seqs 8", "seqs 4")]}))
    answer = as_command("sweep", grid, f"--launch={LINE}", "--format", "json", "-o", target)
    assert answer.status == 0 and len(answer.json["rows"]) == 2
    assert SECRET not in answer.out + answer.err
    secret, redacted = tables_with([SECRET, REDACTED], target)
    assert secret == [] and "run_info" in redacted


@pytest.mark.parametrize(
    "line",
    refusals("safety/test_secrets::test_no_refusal_shows_a_secret"),
)
def test_no_refusal_shows_a_secret(as_command, line):
    answer = as_command("predict", "--launch", line, "--gpu", "l4", "--phase", "decode", "--context-len", 9)
    assert answer.status == 2 and "kernelsight: " in answer.err
    assert SECRET not in answer.out + answer.err


def test_a_line_that_was_not_put_in_quotes_shows_no_secret(as_command):
    for words in (("--launch", *LINE.split()), ("--api-key", SECRET), (f"--api-key={SECRET}",)):
        answer = as_command("simulate", *words, *LOAD)
        assert answer.status == 2 and SECRET not in answer.out + answer.err, answer.err


def test_flags_of_a_load_show_no_secret(as_command, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("arrival_s,prompt_tokens,output_tokens,e2e_ms\n" + "0.1,64,4,30\n" * 3)
    words = ("compare", "--log", log, "--model", "qwen3-0.6b", "--gpu", "l4", "--stated")
    for stated in (f"--request-rate 1 --api-key={SECRET}", f"--request-rate 1 '{SECRET}"):
        answer = as_command(*words, stated)
        assert answer.status == 2 and SECRET not in answer.err


def test_a_value_whose_name_is_a_secret_is_named_and_not_used():
    with pytest.raises(InvalidInput, match="the value of --max-num-seqs in the launch line is redacted"):
        ks.read_launch_line("SEATS_KEY=8; vllm serve m --max-num-seqs $SEATS_KEY")
    assert ks.read_launch_line("MAX_TOKENS=8192; vllm serve m --max-num-batched-tokens $MAX_TOKENS").flags == {
        "engine": "vllm",
        "model": "m",
        "max_num_batched_tokens": 8192,
    }


def test_the_address_of_a_language_model_shows_no_secret(monkeypatch):
    address = f"http://user:{SECRET}@127.0.0.1:9/v1?key={SECRET}"
    with pytest.raises(InvalidInput, match="http or https") as error:
        llm_client.server_of(address.replace("http", "ftp", 1), "m", 1.0, 0)
    assert SECRET not in str(error.value)

    class Closed:
        def open(self, *_, **__):
            raise urllib.error.URLError("refused")

    monkeypatch.setattr(llm_client, "opener", Closed)
    with pytest.raises(RunFailed, match="no server answers") as failed:
        llm_client.ask(llm_client.server_of(address, "m", 1.0, 0), {})
    assert SECRET not in str(failed.value)


def test_settings_of_a_log_hold_no_secret():
    stated = {"api_key": SECRET, "hf-token": SECRET, "otlp_traces_endpoint": f"http://u:{SECRET}@h", "max_num_seqs": 8}
    found = flat_settings(stated, "server_info")
    assert set(found) == {"otlp_traces_endpoint", "max_num_seqs"} and SECRET not in str(found)


MANIFEST = f"""
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - image: vllm/vllm-openai:v0.11.0
          command: ["vllm", "serve", "Qwen/Qwen3-8B"]
          args: ["--api-key", "{SECRET}", "--otlp-traces-endpoint", "http://$(USER):$(PASS)@h/", "--x=$(B_TOKEN)"]
          envFrom: [{{secretRef: {{name: keys}}}}]
          env:
            - {{name: USER, value: me}}
            - {{name: PASS, value: {SECRET}}}
            - {{name: A_SECRET, value: {SECRET}}}
            - {{name: DSN, value: "postgres://me:{SECRET}@db/x"}}
            - {{name: B_TOKEN, valueFrom: {{secretKeyRef: {{name: keys, key: b}}}}}}
"""
COMPOSE = f"""
services:
  llm:
    image: user:{SECRET}@registry/vllm/vllm-openai:v0.11.0
    command: sh -c "API_KEY={SECRET} vllm serve Qwen/Qwen3-8B --api-key {SECRET}"
    environment: [ADMIN_PASSWORD={SECRET}, "URL=http://me:{SECRET}@h"]
"""


@pytest.mark.parametrize("text", [MANIFEST, COMPOSE])
def test_a_manifest_shows_no_secret(as_command, tmp_path, text):
    (tmp_path / "own.yaml").write_text(text)
    line = ks.read_launch_line(text)
    assert line.flags["model"] == "Qwen/Qwen3-8B" and REDACTED in str(line)
    words = ("predict", "--gpu", "h100_sxm", "--phase", "decode", "--context-len", 9, "--format", "json")
    for given in (f"@{tmp_path}/own.yaml", text):
        answer = as_command(*words, "--launch", given)
        assert answer.status == 0 and SECRET not in answer.out + answer.err
