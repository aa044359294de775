"""Flags as keyword arguments: signatures from their declaration, errors that name them, the command line as before."""

from __future__ import annotations

import inspect
import itertools

import pytest

import kernelsight as ks
from kernelsight.cli.main import main
from kernelsight.errors import KernelSightError, flags_in_errors
from kernelsight.scenario.flag import options_of
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.keywords import in_python, type_of


@pytest.mark.parametrize("function", [ks.predict, ks.simulate, ks.size, ks.compare, ks.Session.simulate])
def test_flags_are_keyword_arguments_with_their_documentation(function: object) -> None:
    signature = inspect.signature(function)
    assert not any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    seats = signature.parameters["max_num_seqs"]
    assert (seats.kind, seats.default, seats.annotation) == (seats.KEYWORD_ONLY, None, "int | None")
    assert f"``max_num_seqs`` (int): {FLAGS['max_num_seqs'].help}" in inspect.getdoc(function)


@pytest.mark.parametrize(
    ("function", "table"),
    [(ks.size, "size_questions"), (ks.compare, "comparisons"), (ks.Session.size, "size_questions")],
)
def test_arguments_of_a_question_are_the_options_of_its_table(function: object, table: str) -> None:
    parameters = inspect.signature(function).parameters
    for flag in itertools.chain.from_iterable(options_of(table).values()):
        parameter, words = parameters[flag.name], inspect.getdoc(function)
        unset = (
            {parameter.empty}
            if flag.name in ("gpus", "slo")
            else {None, ()}
            if flag.default is None
            else {flag.default}
        )
        assert parameter.default in unset
        assert flag.default is None or type_of(flag) in parameter.annotation or "Literal" in parameter.annotation
        assert f"``{flag.name}`` ({type_of(flag)}): " in words


def test_what_sizing_varies_is_no_argument_of_it() -> None:
    named = inspect.signature(ks.size).parameters
    assert {"users", "gpus", "slo", "input_len"} <= set(named)
    assert not {"gpu", "request_rate", "max_concurrency", "replicas", "self"} & set(named)


def test_errors_name_keyword_arguments_in_python_and_flags_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = {"model": "qwen3-0.6b", "gpu": "l4", "phase": "decode"}
    with pytest.raises(KernelSightError) as caught:
        ks.predict(**asked)
    assert str(caught.value) == "phase decode needs context_len: the tokens of each sequence in the cache."
    with flags_in_errors(), pytest.raises(KernelSightError) as caught:
        ks.predict(**asked)
    assert str(caught.value) == "--phase decode needs --context-len: the tokens of each sequence in the cache."
    assert main(["predict", "--model", "qwen3-0.6b", "--gpu", "l4"]) == 2
    assert "--phase decode needs --context-len: the tokens of each sequence in the cache." in capsys.readouterr().err


def test_commands_and_flags_of_others_stay_as_they_are() -> None:
    for text in ("give `kernelsight cache --clear`", "run kernelsight size --input-len 3", "--hf-overrides is unknown"):
        assert in_python(text) == text
    assert in_python("give --rate R or --users N.", frozenset({"rate", "users"})) == "give rate or users."


def test_what_the_caller_wrote_stays_as_it_is() -> None:
    for model in ("--input-len", "it's --tp"):
        with pytest.raises(KernelSightError) as caught:
            ks.predict(model=model, gpu="l4", phase="decode", context_len=1)
        assert str(caught.value).startswith(f"unknown model {model!r}")
    # a path stands without quotes, in the same sentence as a flag
    with pytest.raises(KernelSightError) as caught:
        ks.predict(model="no --input-len/config.json", gpu="l4", phase="decode", context_len=1)
    assert "no --input-len/config.json" in str(caught.value)
    assert in_python("model '--seed' is unknown; the engine's --seed, the model's", frozenset()) == (
        "model '--seed' is unknown; the engine's seed, the model's"
    )
