"""Commands run in this process; one saved run serves all tests that read one."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kernelsight.cli.main import main, parser
from kernelsight.cli.options import deployment_flags
from kernelsight.cli.simulate import load_flags
from kernelsight.forward.forward_step import step_shape
from kernelsight.present import output
from kernelsight.scenario.scenario_rows import deployment_row, normalise, resolve_names
from kernelsight.session import Session
from tests.asked import give_plan

# a slow machine prints no more than a fast one
output.LINES_EVERY_S = 3600.0
TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
SIMULATE = ("simulate", "--model", "qwen3-0.6b", "--gpu", "l4")
LOAD = ("--request-rate", "20", "--num-prompts", "12", "--isl", "200", "--osl", "8", "--range-ratio", "0.5")


class Answer(NamedTuple):
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed on stdout, parsed."""
        return json.loads(self.out)


def run_command(*words: object) -> Answer:
    """Run one command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([str(word) for word in words])
        except SystemExit as stop:
            status = int(stop.code or 0)
    return Answer(status, out.getvalue(), err.getvalue())


def flags_of(*words: object) -> dict[str, Any]:
    """Return the flags that `simulate` reads from words."""
    arguments, unknown = parser(["simulate"]).parse_known_args([str(word) for word in words])
    assert not unknown
    return deployment_flags(arguments) | load_flags(arguments)


def simulate_all(session: Session, cases: Mapping[str, Sequence[object]]) -> dict[str, dict[str, Any]]:
    """Simulate the words of each case, all in one call; return each one's summary with its counts of statuses."""
    scenarios = give_plan(session, [flags_of(*words) for words in cases.values()])
    session.compute("scenario_summary", "request_statistics")
    rows: dict[str, dict[str, Any]] = {}
    for name in ("request_statistics", "scenario_summary"):
        for row in session.table(name).to_pylist():
            rows[row["scenario_id"]] = rows.get(row["scenario_id"], {}) | row
    return {case: rows[scenario] for case, scenario in zip(cases, scenarios, strict=True)}


def predict_all(
    session: Session, cases: Mapping[str, tuple[Mapping[str, Any], str, Mapping[str, int]]]
) -> dict[str, dict[str, Any]]:
    """Predict the step of each case (flags, phase, sizes), all in one call; return totals and ``kernels``."""
    planned = [deployment_row(resolve_names(session, normalise(flags))) for flags, _, _ in cases.values()]
    session.give("deployments", list({row["deployment_id"]: row for row in planned}.values()))
    windows = {row["deployment_id"]: row["window_tokens"] for row in session.table("kv_layout").to_pylist()}
    shapes = []
    for number, (row, (_, phase, sizes)) in enumerate(zip(planned, cases.values(), strict=True)):
        name = row["deployment_id"]
        lengths = (sizes.get("batch_size", 1), sizes.get("input_len"), sizes.get("context_len"))
        shape = step_shape(phase, *lengths, windows[name])
        shapes.append(shape | {"deployment_id": name, "step_shape_id": number})
    session.give("step_shapes", shapes)
    steps = {row["step_shape_id"]: row | {"kernels": []} for row in session.table("step_totals").to_pylist()}
    for row in session.table("kernel_latencies").to_pylist():
        steps[row["step_shape_id"]]["kernels"].append(row)
    return {case: steps[number] for number, case in enumerate(cases)}


@pytest.fixture(scope="session")
def command() -> Callable[..., Answer]:
    """Run one command and return its answer."""
    return run_command


@pytest.fixture(scope="session")
def refusal() -> Callable[..., str]:
    """Run a command that must be refused, with one sentence on stderr and nothing on stdout; return the sentence."""

    def refuse(*words: object, status: int = 2) -> str:
        answer = run_command(*words)
        assert (answer.status, answer.out) == (status, ""), answer
        assert answer.err.startswith("kernelsight: ") and answer.err.endswith("\n"), answer.err
        assert answer.err.count("\n") == 1, answer.err
        return answer.err.removeprefix("kernelsight: ").strip()

    return refuse


@pytest.fixture
def tiny_config(tmp_path: Path) -> Callable[..., Path]:
    """Write a config.json of a small Llama, with fields changed or (None) left out; return its path."""

    def write(**changes: object) -> Path:
        folder = tmp_path / "tiny"
        folder.mkdir(exist_ok=True)
        fields = {name: value for name, value in (TINY_CONFIG | changes).items() if value is not None}
        (folder / "config.json").write_text(json.dumps(fields))
        return folder / "config.json"

    return write


@pytest.fixture(scope="session")
def saved_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A run saved without its steps, and what the command printed."""
    path = tmp_path_factory.mktemp("runs") / "run.duckdb"
    answer = run_command(*SIMULATE, *LOAD, "-o", path, "--format", "json")
    assert answer.status == 0, answer.err
    return path, answer


@pytest.fixture(scope="session")
def saved_steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """The same run with its steps, and what the command printed."""
    path = tmp_path_factory.mktemp("runs") / "steps.duckdb"
    answer = run_command(*SIMULATE, *LOAD, "--keep", "steps", "-o", path, "--format", "json")
    assert answer.status == 0, answer.err
    return path, answer
