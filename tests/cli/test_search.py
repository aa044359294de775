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


def test_a_cache_is_imported_and_searched(command, tmp_path):
    keys = ["block_size_x", "tile"]
    cache = {
        f"{block},{tile}": {"block_size_x": block, "tile": tile, "time": 1.0 + abs(block - 64) / 64 + abs(tile - 3)}
        for block in (16, 32, 64, 128)
        for tile in range(1, 9)
    }
    cache["256,1"] = {"block_size_x": 256, "tile": 1, "time": "InvalidConfig"}
    for gpu in ("a", "b"):
        header = {"device_name": gpu, "kernel_name": "conv", "tune_params_keys": keys, "cache": cache}
        (tmp_path / f"{gpu}.json").write_text(json.dumps(header))
    files = (tmp_path / "a.json", tmp_path / "b.json")
    found = command("search", "import", "kernel-tuner", *files, "-o", tmp_path / "s.parquet", "--format", "json")
    assert [(row["gpu"], row["rows"]) for row in found.json] == [("a", 32), ("a", 1), ("b", 32), ("b", 1)]
    assert "66 rows read, 64 kept, 2 rejected; written to" in found.err
    run = command("search", "run", "--space", tmp_path / "s.parquet", "--gpu", "a", "--budget", "8", "--format", "json")
    assert run.json["best_candidate"] == "block_size_x=64,tile=3"
    assert run.json["regret"] == 0.0


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


def test_a_search_considers_what_is_proposed(command, space, tmp_path):
    rows = [{"block_size_x": 64, "tile_size_x": tile, "vector": 2, "cached": 1} for tile in range(1, 7)]
    (tmp_path / "p.json").write_text(json.dumps([*rows, {"block_size_x": 1}]))
    words = ("--propose", tmp_path / "p.json", "--proposals", "4", "--batch", "3", "--budget", "6", "--policy", "order")
    found = command("search", "run", "--space", space, "--gpu", "two", *words, "--format", "json")
    assert [row["measured"] for row in found.json["rounds"]] == [3, 6]
    assert found.json["scenario"]["proposer"] == "given"
    assert "1 proposals are no candidates of 'made' that can be measured, such as block_size_x=1: left out" in found.err


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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--gpu", "two", "--budget", "0"), "--budget is 0; give a whole number of at least 1."),
        (("--gpu", "two", "--budget", "-1"), "--budget is -1; give a whole number of at least 1."),
        (("--gpu", "two", "--budget", "nan"), "invalid int value: 'nan'"),
        (("--gpu", "two", "--budget", "321"), "has 320 candidates measured on two; give at most as many."),
        (("--gpu", "tow"), "GPU 'tow' has no measurements in space 'made' that could be replayed; use two"),
        (("--gpu", "two", "--sources", "two"), "GPU 'two' is searched for, so it cannot be a source"),
        (("--gpu", "two", "--sources", "on"), "unknown source GPU 'on'. Did you mean one?"),
        (("--gpu", "two", "--kernel", "mode"), "unknown search space 'mode'; use made."),
        (("--gpu", "two", "--minutes", "0"), "--minutes is 0.0; give a finite number above 0."),
        (("--gpu", "two", "--anchor", "x=1"), "the anchor 'x=1' is no candidate of 'made'; give the id of one."),
        (("--gpu", "two", "--resume"), "--resume needs -o FILE.duckdb"),
        (
            ("--gpu", "two", "--propose", "none.json"),
            "--propose none.json does not exist; give a JSON list of objects, or JSON lines.",
        ),
        (("--gpu", "two", "--propose", "x", "--proposer", "neighbours"), "--proposer neighbours exclude each other"),
    ],
)
def test_what_cannot_be_searched_is_refused(refusal, space, words, sentence):
    assert sentence in refusal("search", "run", "--space", space, *words)


def test_tuners_and_splits_that_are_not_known_are_refused(refusal, space, tmp_path):
    assert "unknown kernel tuner 'opentuner'" in refusal("search", "import", "opentuner", tmp_path / "x")
    assert "--splits has 'none'; use all or without-nearest" in refusal(
        "search", "evaluate", "--space", space, "--splits", "none"
    )
    assert "--gpus is empty" in refusal("search", "evaluate", "--space", space, "--gpus", ",")
