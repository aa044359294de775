"""Files that a launch line names: read only where a user says so, and never shown."""

from __future__ import annotations

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.scenario.launch.deployments import read_launch_line, with_launch_line
from tests.asked import refusals

HIDDEN = "H1DDENx9"
LINES = {
    "vllm": "vllm serve Qwen/Qwen3-8B --config {}",
    "sglang": "sglang serve --model-path Qwen/Qwen3-8B --config {}",
    "trtllm": "trtllm-serve Qwen/Qwen3-8B --extra_llm_api_options {}",
}


@pytest.fixture
def named(tmp_path):
    """Write a file, and return a launch line of an engine that names it."""

    def write(content: str, engine: str = "vllm") -> str:
        (tmp_path / "own.yaml").write_text(content)
        return LINES[engine].format(tmp_path / "own.yaml")

    return write


@pytest.mark.parametrize("engine", LINES)
def test_a_file_is_not_read_unless_a_user_says_so(named, engine):
    line = named(f"password: {HIDDEN}\n", engine)
    with pytest.raises(
        InvalidInput, match=r"names the file .*own\.yaml, which is not read without --read-launch-files"
    ):
        read_launch_line(line)
    assert read_launch_line(line, read_files=True).flags["model"] == "Qwen/Qwen3-8B"


def test_a_file_that_is_not_here_is_named_with_the_flag(named, tmp_path):
    for read_files in (False, True):
        (word,) = (word for word in read_launch_line(LINES["vllm"].format("gone.yaml"), read_files).words[1:])
        assert (word.words, word.effect) == ("--config gone.yaml", "not_modelled")
        assert "--read-launch-files" in word.reason
    # a template is no file of options: nothing reads it
    (tmp_path / "chat.jinja").write_text(HIDDEN)
    line = read_launch_line(f"vllm serve m --chat-template {tmp_path}/chat.jinja", read_files=True)
    assert HIDDEN not in str(line)


def test_of_a_file_only_names_of_options_are_shown(named):
    line = named(
        f"max-num-seqs: 64\npassword: {HIDDEN}\nport: 80{HIDDEN}\nmoe-backend: {HIDDEN}\n{HIDDEN}: {{a: {HIDDEN}}}\n"
    )
    found = read_launch_line(line, read_files=True)
    assert found.flags["max_num_seqs"] == 64
    assert HIDDEN not in str(found) + str(found.notes()) + str(found.as_dict())
    said = [word.words.partition("own.yaml: ")[2] for word in found.words if "own.yaml" in word.words]
    assert said == ["--max-num-seqs", "option 2", "--port", "--moe-backend", "option 5"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    refusals("scenario/test_launch_files::test_no_refusal_shows_what_is_in_a_file"),
)
def test_no_refusal_shows_what_is_in_a_file(named, content, sentence):
    with pytest.raises(InvalidInput) as error:
        read_launch_line(named(content), read_files=True)
    assert sentence in str(error.value) and "own.yaml" in str(error.value) and HIDDEN not in str(error.value)


def test_the_flag_goes_with_a_line(named):
    line = named("max-num-seqs: 64\n")
    assert with_launch_line({"launch": line, "read_launch_files": True})["max_num_seqs"] == 64
    known = {}
    with pytest.raises(InvalidInput, match="--read-launch-files"):
        with_launch_line({"launch": line}, known)
    with_launch_line({"launch": line, "read_launch_files": True}, known)
    with pytest.raises(InvalidInput, match="--read-launch-files"):
        with_launch_line({"launch": line, "read_launch_files": None}, known)
    with pytest.raises(InvalidInput, match="read_launch_files needs launch"):
        with_launch_line({"model": "m", "read_launch_files": True})
    with pytest.raises(InvalidInput, match="launch is of type int; give a launch line"):
        with_launch_line({"launch": 5})


def test_a_launch_file_is_read_and_the_files_that_it_names_are_not(named, tmp_path):
    (tmp_path / "start.sh").write_text(named("max-num-seqs: 64\n").replace(f"{tmp_path}/", ""))
    with pytest.raises(InvalidInput, match=r"names the file own\.yaml"):
        read_launch_line(f"@{tmp_path}/start.sh")
    assert read_launch_line(f"@{tmp_path}/start.sh", read_files=True).flags["max_num_seqs"] == 64
