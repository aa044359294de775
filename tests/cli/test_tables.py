"""`kernelsight tables`, `explain` and `sql`: listings, queries, endings of -o, and their refusals."""

from __future__ import annotations

import csv
import io
import json
import os

import pyarrow.parquet as pq
import pytest

import kernelsight as ks
from tests.fitting.measured import gemm, write


def test_tables_lists_every_table(command):
    rows = command("tables", "--format", "json").json
    assert {"table", "kind", "grain", "doc"} <= set(rows[0])
    kinds = {row["table"]: row["kind"] for row in rows}
    assert kinds["gpus"] == "given" and kinds["kernel_latencies"] == "derived"
    assert {row["kind"] for row in rows} == {"given", "derived"}
    listed = {line.split()[0] for line in command("tables").out.splitlines()[2:]}
    assert listed == set(kinds)


def test_explain_puts_inputs_before_what_reads_them(command):
    rows = command("explain", "scenario_summary", "--format", "json").json
    made: set[str] = set()
    for row in rows:
        later = {name for other in rows[row["position"] :] for name in other["tables"].split(", ")}
        assert not later & set(row["inputs"].split(", ")), row
        made |= set(row["tables"].split(", "))
    assert {"request_statistics", "step_costs"} <= made and rows[-1]["tables"] == "scenario_summary"


def test_explain_of_a_table_that_is_there_has_columns_all_the_same(command, tmp_path):
    assert command("explain", "gpus", "--format", "csv").out == "position,kind,tables,inputs,doc\n"
    command("explain", "gpus", "-o", tmp_path / "plan.parquet")
    assert pq.read_table(tmp_path / "plan.parquet").column_names == ["position", "kind", "tables", "inputs", "doc"]


def test_sql_answers_in_three_formats(command):
    query = "select gpu, memory_bytes from gpus where gpu = 'h100_sxm'"
    [row] = command("sql", query, "--format", "json").json
    assert row["gpu"] == "h100_sxm" and isinstance(row["memory_bytes"], int)
    assert command("sql", query, "--format", "csv").out == f"gpu,memory_bytes\nh100_sxm,{row['memory_bytes']}\n"
    assert command("sql", query).out.splitlines()[2].split() == ["h100_sxm", f"{row['memory_bytes']:,}"]


def test_no_rows_are_an_answer(command):
    assert command("sql", "select gpu from gpus where false", "--format", "json").json == []
    assert command("sql", "select gpu from gpus where false", "--format", "csv").out == "gpu\n"


def test_columns_of_one_name_do_not_hide_each_other(command):
    assert command("sql", "select 1 as x, 2 as x, 3 as x", "--format", "json").json == [{"x": 1, "x_1": 2, "x_2": 3}]


def test_json_carries_every_type(command):
    query = """select sum(n) as s, 1.5::decimal(4,2) as d, 'nan'::double as f, date '2024-01-02' as t, [1, null] as l,
               {'a': 1} as o, null as n from range(3) as r(n)"""
    assert command("sql", query, "--format", "json").json == [
        {"s": 3, "d": 1.5, "f": None, "t": "2024-01-02", "l": [1, None], "o": {"a": 1}, "n": None}
    ]


def test_what_only_a_run_holds_names_the_commands_that_make_one(refusal):
    sentence = refusal("sql", "select * from scenario_summary")
    assert sentence.startswith("missing input table 'scenarios' (needed by 'scenario_summary')")
    assert sentence.endswith(
        "Save a run with `kernelsight simulate ... -o run.duckdb`, then query it with "
        "`kernelsight sql QUERY --db run.duckdb`."
    )


@pytest.mark.parametrize("verb", [("tables", "gpus"), ("explain", "requests"), ("sql", "select 1 as one")])
def test_endings_of_o(verb, command, refusal, tmp_path):
    for ending in (".parquet", ".csv", ".json"):
        answer = command(*verb, "-o", tmp_path / f"out{ending}")
        assert answer.status == 0 and answer.out
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert json.loads((tmp_path / "out.json").read_text()) == rows
    assert len(list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text())))) == len(rows) + 1
    assert "ends in '.xlsx'; use one of .parquet, .csv, .json." in refusal(*verb, "-o", "out.xlsx")
    assert "has no file extension" in refusal(*verb, "-o", "out")
    assert "cannot be written: folder" in refusal(*verb, "-o", tmp_path / "nowhere" / "out.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder; give a file name." in refusal(*verb, "-o", tmp_path / "folder.csv")
    (tmp_path / "circle.csv").symlink_to("circle.csv")
    assert "is a link that leads nowhere" in refusal(*verb, "-o", tmp_path / "circle.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    assert "is a pipe or a device, which a file would replace" in refusal(*verb, "-o", tmp_path / "pipe.csv")


def test_intervals_and_bytes_are_written_as_duckdb_writes_them(command):
    query = (
        r"select interval 90 minute as gap, 'x\xAB'::blob as bytes, [interval 1 day] as gaps, null::interval as none"
    )
    row = {"gap": "01:30:00", "bytes": r"x\xAB", "gaps": "[1 day]", "none": None}
    assert command("sql", query, "--format", "json").json == [row]
    assert command("sql", query, "--format", "csv").out.splitlines()[1] == r"01:30:00,x\xAB,[1 day],"


def test_a_type_that_parquet_lacks_is_one_sentence(refusal, tmp_path):
    sentence = refusal("sql", "select interval 1 day as gap", "-o", tmp_path / "out.parquet")
    assert "Parquet cannot store these columns" in sentence and sentence.endswith("cast them, or use .csv or .json.")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_saved_run(refusal, tmp_path):
    junk = tmp_path / "junk.duckdb"
    assert refusal("sql", "select 1", "--db", junk).startswith(f"file {junk} does not exist")
    for content in ("junk", ""):
        junk.write_text(content)
        assert refusal("sql", "select 1", "--db", junk).startswith(f"{junk} cannot be opened as a DuckDB file: ")
    assert refusal("sql", "select 1", "--db", tmp_path).startswith(f"{tmp_path} cannot be opened as a DuckDB file: ")
    assert "remove one of them." in refusal("sql", "select 1", "--db", junk, "--gpus", "gpus.csv")


def test_a_saved_run_is_read_without_simulating(saved_run, command, monkeypatch):
    import kernelsight.serving.runs.simulate

    def refuse(*tables: object) -> None:
        raise AssertionError("a saved run was simulated")

    monkeypatch.setattr(kernelsight.serving.runs.simulate, "simulate_scenarios", refuse)
    path, answer = saved_run
    [row] = command("sql", "select completed, ttft_p90_ms from scenario_summary", "--db", path, "--format", "json").json
    assert row == {"completed": answer.json["completed"], "ttft_p90_ms": answer.json["ttft_ms"]["p90"]}
    # not saved, but derived from what is
    [row] = command("sql", "select count(*) as n from itl_percentiles", "--db", path, "--format", "json").json
    assert row["n"] > 0
    with ks.connect(path, read_only=True) as session:
        assert session.table("kv_layout").num_rows == 1
        assert session.table("kernel_breakdown").num_rows == len(answer.json["breakdown"])


def test_a_saved_run_holds_the_tables_that_are_promised(saved_run, saved_steps, command):
    query = "select table_name from duckdb_tables() where database_name = 'kernelsight_file'"
    held = {row["table_name"] for row in command("sql", query, "--db", saved_run[0], "--format", "json").json}
    given = {row["table"] for row in command("tables", "--format", "json").json if row["kind"] == "given"}
    with ks.connect() as session:
        nobody_gave = given - session.available() - {"deployments", "scenarios", "run_info"}
    # what imported sweeps are named by, and how measured runs were served, is read by no prediction; of the shipped
    # kernel model a run holds the hash
    assert given - nobody_gave - {"kernel_sources", "recipes", "eta_coefficients"} <= held
    assert {
        "kernel_calls",
        "kernel_latencies",
        "step_costs",
        "step_cost_uses",
        "request_metrics",
        "scenario_summary",
        "run_info",
    } <= held
    assert "steps" not in held
    held = {row["table_name"] for row in command("sql", query, "--db", saved_steps[0], "--format", "json").json}
    assert "steps" in held


def test_measured_kernels_answer_to_sql(command, refusal, tmp_path):
    sweep = write(tmp_path / "mine.parquet", [gemm("h100_sxm", m, 4096, 4096, 20.0 + m) for m in (16, 32)])
    query = "select sum(latency_us) as us from sweep_points join gpus using (gpu)"
    assert command("sql", query, "--sweep", sweep, "--format", "json").json == [{"us": 88.0}]
    assert "does not exist" in refusal("sql", query, "--sweep", tmp_path / "none.parquet")


def test_measured_kernels_without_the_package_want_a_sweep(refusal, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "give --sweep FILE" in refusal("sql", "select 1 from sweep_points")
