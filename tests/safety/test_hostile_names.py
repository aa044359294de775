"""One hostile name goes through every face: it stays a name in HTML, scripts, traces, terminals, JSON and CSV."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kernelsight.cli.main import main, parser
from kernelsight.errors import InvalidInput
from kernelsight.escape import shell_line
from kernelsight.present.html import page as pages
from kernelsight.session import Session, connect
from tests.cli.conftest import run_command
from tests.present.html.browser import needs_browser, open_in_browser, without_scripts
from tests.safety.hostile_names import (
    FILE_NAME,
    HOSTILE,
    TAGS,
    Page,
    check_elements,
    check_lines,
    in_html,
    in_terminal,
    read_page,
)
from tests.safety.hostile_world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("hostile"))
    yield made
    made.session.close()


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2", reason="the extra `report` is not installed")
    monkeypatch.setattr(pages, "chart_library", lambda: "window.drawChart = () => {};")


# --- notebooks --------------------------------------------------------------------------------------------------------

NOTEBOOKS: dict[str, Callable[[World], Any]] = {
    "Prediction": lambda world: world.session.predict(model=HOSTILE, gpu=HOSTILE, context_len=100),
    "Run": lambda world: world.run,
    "WhatIf": lambda world: world.sweep,
    "Session": lambda world: connect(world.saved("run"), read_only=True),
    "Sizing": lambda world: world.sizing,
    "Comparison": lambda world: world.comparison,
}


@pytest.mark.parametrize(
    "face",
    [name if name in ("Run", "WhatIf") else pytest.param(name, marks=pytest.mark.whole) for name in NOTEBOOKS],
)
def test_notebooks(face: str, world: World) -> None:
    shown = NOTEBOOKS[face](world)
    page = read_page(shown._repr_html_())
    assert {tag for tag, _ in page.elements} <= {"p", "table", "thead", "tbody", "tr", "th", "td"}
    assert not any(attributes for _, attributes in page.elements)
    check_lines(repr(shown))
    if face == "Session":
        assert in_terminal(FILE_NAME) in page.text
    elif face != "Comparison":
        assert in_terminal(HOSTILE) in page.text or in_html(HOSTILE) in page.text
    if isinstance(shown, Session):
        shown.close()


# --- pages ------------------------------------------------------------------------------------------------------------


def check_page(text: str) -> Page:
    """Hold a page against what its writer put there, and its scripts against their number and content."""
    page = read_page(text)
    check_elements(page)
    assert {"html", "main", "section"} <= {tag for tag, _ in page.elements} <= TAGS
    drawn = [json.loads(content) for kind, content in page.scripts if kind == "application/json"]
    places = [attributes for tag, attributes in page.elements if attributes.get("class") == "chart"]
    assert len(drawn) == len(places) > 0 and all("data" in spec for spec in drawn)
    assert [kind for kind, _ in page.scripts if kind != "application/json"] == ["", ""]
    return page


def strings_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_of(item)


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("face", ["run", "sweep", "comparison", "search"])
def test_pages(face: str, world: World, tmp_path: Path) -> None:
    answer = run_command("report", world.saved(face), "-o", tmp_path / f"{FILE_NAME}.html")
    assert answer.status == 0, answer.err
    check_lines(answer.err)
    page = check_page((tmp_path / f"{FILE_NAME}.html").read_text(encoding="utf-8"))
    assert in_html(FILE_NAME if face == "comparison" else HOSTILE) in page.text
    specs = [json.loads(content) for kind, content in page.scripts if kind == "application/json"]
    if face in ("run", "sweep"):
        assert any(HOSTILE in text for text in strings_of(specs))


@pytest.mark.usefixtures("without_library")
def test_the_page_of_a_backtest(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="the extra `report` is not installed")
    from benches.evaluation.tests.runs.test_plots import ANSWER, row
    from kernelsight.laboratory.cli.backtest_plot import draw

    groups = [group | {"model": HOSTILE} for group in ANSWER["groups"]]
    draw([row(1, run_id=HOSTILE, engine=HOSTILE)], ANSWER | {"groups": groups}, tmp_path / "plot.html")
    page = read_page((tmp_path / "plot.html").read_text(encoding="utf-8"))
    check_elements(page)
    assert HOSTILE in list(strings_of(json.loads(page.scripts[0][1])))


@needs_browser
@pytest.mark.whole
def test_a_browser_draws_every_chart_and_runs_nothing_of_the_name(world: World, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
    path = tmp_path / "run.html"
    assert main(["report", str(world.saved("run")), "-o", str(path)]) == 0
    charts = len([kind for kind, _ in check_page(path.read_text(encoding="utf-8")).scripts if kind])
    elements, console = open_in_browser(path, tmp_path)
    assert console == []
    assert without_scripts(elements).count("<svg") == charts and "<img" not in without_scripts(elements)


# --- traces -----------------------------------------------------------------------------------------------------------


def test_the_timeline_is_json(world: World, tmp_path: Path) -> None:
    answer = run_command("timeline", world.saved("run"), "-o", tmp_path / f"{FILE_NAME}.json")
    assert answer.status == 0, answer.err
    check_lines(answer.err)
    events = json.loads((tmp_path / f"{FILE_NAME}.json").read_text(encoding="utf-8"))["traceEvents"]
    names = {event["name"] for event in events}
    assert {HOSTILE, f"{HOSTILE}0", f"{HOSTILE}23"} <= names
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert titles == [f"replica 0: {HOSTILE} on {HOSTILE}, tp 1 pp 1"]


# --- terminals, JSON, CSV ---------------------------------------------------------------------------------------------

LAUNCH = shlex.join(["vllm", "serve", "Qwen/Qwen3-0.6B", "--served-model-name", HOSTILE, f"--{HOSTILE}"])
SHOWN = "select gpu, model, (select min(name) from kernel_calls where length(name) > 600) as kernel"


GPU = ["--gpus", "{gpus}", "--gpu", HOSTILE]
SMALL = ["--input-len", 100, "--output-len", 8]
SIZE = ["--gpus", "{gpus}", "--rate", 5, "--slo", "ttft_p95:1000", "--max-gpus", 1, "--no-tune", *SMALL]
# in which the name is a GPU, a model, a file, a kernel, a request or a word of a launch line
COMMANDS = {
    "predict": ["predict", *GPU, "--model", "{model}", "--context-len", 100],
    "simulate": ["simulate", *GPU, "--model", "{model}", *SMALL, "--request-rate", 40, "--num-prompts", 24],
    "sweep": ["sweep", "{grid}", "--gpus", "{gpus}"],
    "size": ["size", "--model", "{model}", *SIZE],
    "compare": ["compare", *GPU, "--model", "{model}", "--log", "{log}", "--suspects", "none"],
    "sql": ["sql", f"{SHOWN} from deployment_settings", "--db", "{run}"],
    "search": ["search", "run", "--space", "{space}", "--gpu", HOSTILE, "--budget", 10],
    "launch": ["predict", "--gpu", "l4", "--context-len", 100, "--verbose", "--launch", LAUNCH],
}


def words_of(world: World, verb: str) -> list[Any]:
    """Return the words of a command, with the files that it names."""
    files: dict[Any, Callable[[], Path]] = {
        **{"{run}": lambda: world.saved("run"), "{log}": lambda: world.log, "{space}": lambda: world.space},
        **{"{gpus}": lambda: world.gpus, "{model}": lambda: world.model, "{grid}": lambda: world.grid},
    }
    return [files[word]() if word in files else word for word in COMMANDS[verb]]


# tables alone of what takes long
FORMS = {verb: ["table"] for verb in ("simulate", "size", "compare")} | {"launch": ["table", "json"]}


@pytest.mark.parametrize(
    ("verb", "form"), [(verb, form) for verb in COMMANDS for form in FORMS.get(verb, ["table", "json", "csv"])]
)
def test_commands(verb: str, form: str, world: World) -> None:
    answer = run_command(*words_of(world, verb), "--format", form)
    assert answer.status == 0, answer.err
    check_lines(answer.err)
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(answer.out, newline="")))
        assert rows and all(None not in row and None not in row.values() for row in rows)
        found = {value for row in rows for value in row.values()}
    else:
        check_lines(answer.out)
        found = set(strings_of(answer.json)) if form == "json" else set()
    if verb == "launch":
        assert in_terminal("\n\tFORGED\0\x1b[2J") in answer.err
    elif form == "table" and verb != "compare":
        assert in_terminal(HOSTILE) in answer.out or in_terminal(HOSTILE.replace("\n", " ")) in answer.out
    elif (verb, form) not in {("predict", "csv"), ("search", "csv"), ("compare", "table")}:
        assert HOSTILE in found  # the same name is read back


REFUSED: dict[str, Callable[[World], list[Any]]] = {
    "GPU": lambda world: ["predict", "--model", "qwen3-0.6b", "--gpu", HOSTILE, "--context-len", 1],
    "model": lambda world: ["predict", "--model", HOSTILE, "--gpu", "l4", "--context-len", 1],
    "number": lambda world: ["predict", "--model", "qwen3-0.6b", "--gpu", "l4", "--batch-size", HOSTILE],
    "flag": lambda world: ["predict", f"--{HOSTILE}"],
    "file": lambda world: ["report", world.folder / "none.duckdb", "-o", world.folder / "x.html"],
    "folder": lambda world: ["report", world.saved("run"), "-o", world.folder / "none" / "x.html"],
    "table": lambda world: ["explain", HOSTILE],
    "scenario": lambda world: ["timeline", world.saved("sweep"), "--scenario", HOSTILE, "-o", world.folder / "x.json"],
    "query": lambda world: ["sql", f'select "{HOSTILE}" from gpus'],
    "launch line": lambda world: ["predict", "--gpu", "l4", "--launch", HOSTILE],
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str, world: World) -> None:
    answer = run_command(*REFUSED[what](world))
    assert (answer.status, answer.out) == (2, "")
    check_lines(answer.err)
    assert answer.err.count("\n") == 1


def test_a_sentence_of_the_parser(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parser([]).error(HOSTILE)
    check_lines(capsys.readouterr().err)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash is installed")
def test_a_shell_reads_the_name_of_a_launch_line_back() -> None:
    words = [HOSTILE.replace("\0", ""), FILE_NAME, "it's", "a b", "plain"]
    line = shell_line(words)
    check_lines(line)
    assert line.endswith(" 'a b' plain") and "\n" not in line
    command = ["bash", "-c", f"printf '%s\\0' {line}"]
    done = subprocess.run(command, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.decode().split("\0") == [*words, ""]


def test_verbs_print_data_alone_and_pages_by_print_page() -> None:
    found = []
    for path in (Path(__file__).parents[2] / "kernelsight" / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                to_stderr = any(word.arg == "file" for word in node.keywords)
                if not to_stderr and not re.match(
                    r"(as_json|answer_json|as_csv|argcomplete\.shellcode)\(|text$", ast.unparse(node.args[0])
                ):
                    found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_a_flow_chart_has_names_of_contracts_alone(world: World, tmp_path: Path) -> None:
    with connect() as session, pytest.raises(InvalidInput) as refused:
        session.give(HOSTILE, [{"x": 1}])
    check_lines(str(refused.value))
    shutil.copy(world.saved("run"), tmp_path / "run.duckdb")
    name = HOSTILE.replace("\0", "").replace('"', '""')
    with duckdb.connect(tmp_path / "run.duckdb") as connection:
        connection.execute(f'create table "{name}" as select 1 as x')
    with connect(tmp_path / "run.duckdb", read_only=True) as session:
        chart = session.explain("pareto_front", format="mermaid")
        check_lines(repr(session))
    nodes = re.findall(r'\["(.*)<br>\w+"\]|\[\("(.*)"\)\]', chart)
    assert nodes and all(re.fullmatch("[a-z0-9_]+", first or second) for first, second in nodes)
