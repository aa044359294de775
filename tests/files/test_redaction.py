"""Secrets in words: redacted in every form that people paste, and nothing else is."""

from __future__ import annotations

import argparse
import json
import shlex

import pytest

from kernelsight.catalog.tables import facts
from kernelsight.cli.main import parser
from kernelsight.errors import InvalidInput
from kernelsight.files.redaction import (
    OPTIONS,
    REDACTED,
    names_secret,
    redacted_text,
    redacted_tree,
    redacted_words,
)
from kernelsight.files.shell_words import join_commands, split_commands
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.launch.deployments import read_launch_line
from kernelsight.scenario.launch.server_commands import MOST_NESTED

SECRET = "S3CRETx9"
SERVE = "vllm serve Qwen/Qwen3-8B -tp 2"
JSON = json.dumps({"kv_role": "kv_both", "password": SECRET, "inner": {"api_keys": [SECRET, SECRET]}})
FORMS = {
    "an option": f"{SERVE} --api-key {SECRET} --port 80",
    "with =": f"{SERVE} --api-key={SECRET} --port 80",
    "several values": f"{SERVE} --api-key {SECRET} {SECRET}2 --port 80",
    "underscores": f"{SERVE} --api_key {SECRET}",
    "quotes": f"{SERVE} --ssl-keyfile-password '{SECRET} {SECRET}'",
    "quotes within": f"{SERVE} --hf-token {SECRET[:3]}'{SECRET[3:]}'",
    "shortened": f"{SERVE} --hf-tok {SECRET} --api-k={SECRET}",
    "before the model": f"vllm serve --hf-token {SECRET} Qwen/Qwen3-8B -tp 2",
    "an option of no engine": f"{SERVE} --vault-secret-id {SECRET} --auth {SECRET} --s3.password {SECRET}",
    "a hyphen": f"{SERVE} --ssl-keyfile-password -{SECRET}",
    "a line that goes on": f"{SERVE} --api-key \\\n {SECRET}",
    "variables": f"DB_PASSWORD={SECRET} MY_SECRET={SECRET} A_KEY='{SECRET} {SECRET}' PGPASSWORD={SECRET} {SERVE}",
    "export": f"export HF_TOKEN={SECRET} AWS_CREDENTIALS={SECRET}; {SERVE} --seed 1",
    "env": f"env -i REGISTRY_PASS={SECRET} {SERVE}",
    "a variable used": f"HF_TOKEN={SECRET}; {SERVE} --unheard-of $HF_TOKEN --also ${{HF_TOKEN:-{SECRET}}}",
    "a default": f"{SERVE} --unheard-of ${{HF_TOKEN:-{SECRET}}}",
    "docker": f"docker run -e DB_PASSWD={SECRET} --env A_TOKEN={SECRET} --env=B_KEY={SECRET} -eC_SECRET={SECRET} "
    "vllm/vllm-openai --model Qwen/Qwen3-8B -tp 2",
    "a shell": f'''bash -c "API_KEY={SECRET} {SERVE} --api-key '{SECRET}'"''',
    "a shell in docker": f"docker run --rm vllm/vllm-openai bash -lc 'export X_KEY={SECRET} && {SERVE} --api-key "
    f"{SECRET}'",
    "two shells": f"""bash -c "bash -c '{SERVE} --api-key {SECRET}'" """,
    "an address": f"{SERVE} --otlp-traces-endpoint http://user:{SECRET}@host:4317/v1",
    "an address, slashes": f"{SERVE} --otlp-traces-endpoint https://user:{SECRET}/{SECRET}@host/",
    "a token as user": f"{SERVE} --otlp-traces-endpoint https://{SECRET}@host/",
    "without a scheme": f"{SERVE} --otlp-traces-endpoint user:{SECRET}@host:4317",
    "a query": f"{SERVE} --otlp-traces-endpoint 'http://h/?x=1&api_key={SECRET}&token={SECRET}#access_token={SECRET}'",
    "a header": f"{SERVE} --middleware 'Authorization: Bearer {SECRET}' 'X-Api-Key: {SECRET}'",
    "a cookie": f"{SERVE} --middleware 'Cookie: a={SECRET}; sid={SECRET}'",
    "a header in JSON": f"""{SERVE} --opts '{{"list": ["Bearer {SECRET}"], "h": "authorization: a {SECRET}"}}'""",
    "a header in pieces": f"{SERVE} --middleware Authorization: Basic {SECRET}",
    "JSON": f"{SERVE} --kv-transfer-config {shlex.quote(JSON)}",
    "JSON with =": f"{SERVE} --kv-transfer-config={shlex.quote(JSON)}",
    "fields of JSON": f"{SERVE} --kv-transfer-config.extra.password {SECRET} --kv-transfer-config.api_keys+ {SECRET}",
    "broken JSON": f"{SERVE} --kv-transfer-config {shlex.quote(JSON[:-3])}",
    "pairs": f"{SERVE} --connect user=me,password={SECRET},host=h",
    "sshpass": f"sshpass -p {SECRET} ssh host {SERVE}; sshpass -p{SECRET} true",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_in_no_word_of_a_launch_line(form):
    line = read_launch_line(FORMS[form])
    assert SECRET not in str(line) and SECRET not in str(line.notes()) and SECRET not in str(line.as_dict())
    assert REDACTED in str(line.words) or form == "export"
    assert (line.flags["model"], line.flags["tensor_parallel_size"]) == ("Qwen/Qwen3-8B", 2)


@pytest.mark.parametrize("form", FORMS)
def test_a_redacted_line_is_the_same_deployment_and_is_redacted_once(form):
    clean = redacted_text(FORMS[form])
    assert SECRET not in clean and redacted_text(clean) == clean
    assert read_launch_line(clean).flags == read_launch_line(FORMS[form]).flags
    argument = redacted_words(["simulate", "--launch", FORMS[form], f"--launch={FORMS[form]}", "--max-num-seqs", "8"])
    assert SECRET not in str(argument) and argument[-2:] == ["--max-num-seqs", "8"]
    assert argument[2] == clean


def test_what_holds_no_secret_stays_as_it_is():
    words = shlex.split(
        f"MODEL=Qwen/Qwen3-8B MAX_TOKENS=8192 TOKENIZERS_PARALLELISM=false {SERVE} --max-num-batched-tokens 8k "
        """--hf-overrides '{"num_key_value_heads": 8, "bos_token_id": 1}' --ssl-keyfile /etc/key.pem --revision a@b """
        "--otlp-traces-endpoint http://host:4317/v1?x=1 --allow-credentials --speculative-token-map f "
        "--image vllm/vllm-openai:v0.11.0@sha256:1 --chat-template '{{ messages }} and more' --hf-token -dp 2"
    )
    assert redacted_words(words) == words


def test_of_the_options_of_the_engines_those_with_secrets_are_redacted_and_no_other():
    rows = facts("engine_flags").to_pylist()
    named = [(row, name) for row in rows for name in (row["option"], *(row["spellings"] or "").split())]
    options = {name for _, name in named if name.startswith("-") and names_secret(name)}
    assert options == set(OPTIONS)
    variables = {name for _, name in named if not name.startswith("-") and names_secret(name, variable=True)}
    assert variables == {"VLLM_API_KEY", "HUGGING_FACE_HUB_TOKEN"}
    counted = {name for row, name in named if row["flag"] or row["takes"] in ("json", "file", "none")}
    assert len(counted) > 300 and not counted & options
    for name in (name for name in counted if name.startswith("-")):
        assert redacted_words([name, "8"]) == [name, "8"] and redacted_words([f"{name}=8"]) == [f"{name}=8"]


def test_no_flag_of_ours_is_redacted():
    ours, waiting = {option for flag in FLAGS.values() for option in flag.options}, [parser()]
    while waiting:
        for action in waiting.pop()._actions:
            ours |= set(action.option_strings)
            waiting += action.choices.values() if isinstance(action, argparse._SubParsersAction) else ()
    assert len(ours) > 200 and not [name for name in ours if names_secret(name)]


def test_a_tree_of_yaml_or_json():
    given = {
        "env": [{"name": "DB_PASS", "value": SECRET}, {"name": "PORT", "value": "80"}],
        "credentials": {"user": SECRET, "ports": [1, True, None]},
        "args": ["--api-key", SECRET, "--port", "80"],
        "maxTokens": 5,
    }
    clean = redacted_tree(given)
    assert SECRET not in str(clean)
    assert clean["env"][1] == {"name": "PORT", "value": "80"} and clean["maxTokens"] == 5
    assert clean["credentials"]["ports"] == [REDACTED, True, None]
    assert clean["args"] == [f"--api-key={REDACTED}", "--port", "80"]


def test_yaml_and_what_cannot_be_split_are_redacted_as_a_whole():
    assert redacted_text(f"spec:\n  env:\n  - name: DB_PASSWORD\n    value: {SECRET}\n") == REDACTED
    assert redacted_text(f"it's the password {SECRET}") == REDACTED


def nested(command: str, depth: int) -> str:
    for _ in range(depth):
        command = join_commands([["bash", "-c", command]])
    return command


def test_shells_within_shells_are_bounded():
    deep = nested(f"{SERVE} --api-key {SECRET}", MOST_NESTED)
    line = read_launch_line(deep)
    assert line.flags["tensor_parallel_size"] == 2 and SECRET not in str(line)
    assert SECRET not in str(redacted_words(["--launch", nested(deep, 4)]))
    with pytest.raises(InvalidInput, match=f"shells within shells, more than {MOST_NESTED} deep"):
        read_launch_line(nested(SERVE, MOST_NESTED + 1))
    # every shell makes the text three times as long
    with pytest.raises(InvalidInput, match="characters; give the command of the server alone"):
        read_launch_line(nested(SERVE, 12))
    assert redacted_text(nested(f"{SERVE} --api-key {SECRET}", 12)) == REDACTED


@pytest.mark.parametrize("words", [["a b", "c'd", 'e"f', "$X", "<redacted>", "", "x=y z"], ["A=1", "b\nc"]])
def test_joined_commands_split_into_the_same_words(words):
    assert list(split_commands(join_commands([words, ["next"]]))) == [words, ["next"]]
