"""`kernelsight search`: imports, searches, saved and resumed runs, evaluations, and their refusals."""

from __future__ import annotations

import json
import sys

import pyarrow.parquet as pq
import pytest

import kernelsight as ks
from kernelsight.errors import InvalidInput
from tests.searching.made_spaces import made_rows


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    path = tmp_path_factory.mktemp("spaces") / "made.parquet"
    pq.write_table(made_rows(), path)
    return path


BENCH = """
import sys
x, y, layout = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if x == 128 and y == 8:
    sys.exit("too many registers")
print(100 + abs(x - 64) / 2 + 5 * abs(y - 4) + 9 * (layout == "col"))
"""


def test_a_kernel_that_nobody_measured_is_searched(command, refusal, tmp_path):
    stated = {"name": "own", "tune_params": {"x": [16, 32, 64, 128], "y": [1, 2, 4, 8], "layout": ["row", "col"]}}
    stated["restrictions"] = ["x * y <= 1024", "y < 8 or layout == 'row'"]
    (tmp_path / "own.json").write_text(json.dumps(stated))
    (tmp_path / "bench.py").write_text(BENCH)
    space = tmp_path / "own.parquet"
    found = command("search", "import", "parameters", tmp_path / "own.json", "-o", space, "--format", "json")
    assert [(row["space"], row["gpu"], row["rows"]) for row in found.json] == [("own", None, 28), ("own", None, 4)]
    asked = ("search", "run", "--space", space, "--gpu", "l4", "--budget", "20")
    run = command(
        *asked, "--measure", f"{sys.executable} {tmp_path / 'bench.py'} {{x}} {{y}} {{layout}}", "--format", "json"
    )
    assert (run.json["best_candidate"], run.json["best_us"]) == ("layout=row,x=64,y=4", pytest.approx(100.0))
    refused = {
        asked: "GPU 'l4' has no measurements in space 'own' that could be replayed; measure on the GPU itself",
        (*asked, "--sources", "h100_sxm", "--measure", "true {x}"): "Space 'own' was measured on no GPU.",
        ("search", "evaluate", "--space", space): "no configuration of these spaces was measured on any GPU",
        ("search", "import", "parameters", tmp_path / "own.json", "--gpu", "l4"): "belong to no GPU",
    }
    for line, sentence in refused.items():
        assert sentence in refusal(*line)


def test_a_run_is_saved_whole(command, space, tmp_path):
    target = tmp_path / "run.duckdb"
    said = command("search", "run", "--space", space, "--gpu", "two", "--budget", "20", "-o", target)
    assert said.out.startswith("Best of made on two after 20 measurements: ")
    with ks.connect(target, read_only=True) as saved:
        assert saved.table("search_measurements").num_rows == 20
        assert saved.table("search_rounds")["measured"].to_pylist() == [5, 10, 15, 20]
        last = saved.sql("select count(*), min(p05_us) from kernel_forecasts where round = 4").fetchall()[0]
        assert last[0] == 320 and last[1] > 0
        assert saved.sql("select count(*) from search_decisions join kernel_candidates using (candidate_id)").fetchall()
    assert not target.with_name("run.duckdb.journal").exists()


def test_a_run_has_a_page_at_once(command, space, tmp_path):
    pytest.importorskip("vl_convert")
    page = tmp_path / "run.html"
    said = command("search", "run", "--space", space, "--gpu", "two", "--budget", "20", "-o", page)
    text = page.read_text(encoding="utf-8")
    assert said.out.startswith("Best of made on two") and "<h1>Kernel search: made on two</h1>" in text
    assert "How to repeat it" in text and "No rows" not in text


def test_evaluate_prints_the_report(command, space):
    words = ("--space", space, "--seeds", "1", "--budget", "20", "--gpus", "one", "--policies", "order,selective")
    found = command("search", "evaluate", *words, "--format", "json").json
    assert [row["policy"] for row in found["policies"]] == ["order", "selective"]
    shown = command("search", "evaluate", *words)
    head = shown.out.splitlines()[0].split()
    assert head[:4] == ["space", "gpu", "policy", "runs"]
    # what lies beyond the budget was not measured
    assert [name for name in head if name.startswith("regret")] == ["regret_10", "regret_20"]
    assert "90 % intervals cover" not in shown.err  # nothing is scored before 20 measurements were made


def test_an_evaluation_writes_what_it_prints_and_leaves_no_journal(command, refusal, space, tmp_path):
    target = tmp_path / "e.json"
    words = ("search", "evaluate", "--space", space, "--seeds", "1", "--budget", "20", "--policies", "order")
    found = command(*words, "--format", "json", "-o", target)
    assert json.loads(target.read_text()) == found.json
    assert [path.name for path in tmp_path.iterdir()] == ["e.json"]
    assert "--resume needs -o FILE" in refusal(*words, "--resume")


def test_searches_that_need_a_proposer_are_no_tables(space):
    rows = [{"space": "made", "gpu": "one", "budget_measurements": 5, "proposer": "given"}]
    with pytest.raises(InvalidInput, match="gives, so it cannot be replayed as a table; use `search run --propose`"):
        ks.search(rows, space=space)


def test_searches_are_tables_of_a_session(space):
    with ks.connect() as session:
        rows = [{"space": "made", "gpu": gpu, "budget_measurements": 20} for gpu in ("one", "two")]
        summary = session.search(rows, space=space)
        assert summary["measured"].to_pylist() == [20, 20]
        assert session.table("search_rounds").num_rows == 8
        assert max(summary["regret"].to_pylist()) < 0.05
    assert ks.search(rows, space=space).equals(summary)
