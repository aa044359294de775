"""All tables of a call: contracts, names of logs, times that are comparable, sessions that take them."""

from __future__ import annotations

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import rows
from tests.logs.written import DATA, chrome_trace, inference_perf_request, lines, litellm, matrix, nsys, save


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The tables of one call with every kind of file."""
    folder = tmp_path_factory.mktemp("logs")
    requests = ["vllm_bench.json", "sglang_bench.jsonl", "sglang_requests.log", "guidellm.json", "profile_export.jsonl"]
    paths = [DATA / name for name in requests] + [save(folder / "a.jsonl", lines([litellm(n) for n in range(3)]))]
    paths.append(save(folder / "per_request.json", [inference_perf_request(0)]))
    series = {("vllm:num_requests_running", "a"): [1, 2, 3]}
    kernels = [DATA / "forward.rank0.kernels.json", save(folder / "trace.json", chrome_trace()), nsys(folder / "p.db")]
    steps = [DATA / "fpm.jsonl.gz", DATA / "vllm_iterations.log"]
    return read_logs(paths, steps=steps, metrics=save(folder / "m.json", matrix(series)), kernels=kernels)


def test_logs_and_their_rows_belong_together(everything):
    logs = {row["log_id"]: row for row in everything["production_logs"].to_pylist()}
    for name, table in everything.items():
        if name == "production_files":  # some of them are in no log
            continue
        assert set(table["log_id"].to_pylist()) <= set(logs)
    counted: dict[str, int] = {}
    for row in rows(everything):
        counted[row["log_id"]] = counted.get(row["log_id"], 0) + 1
    assert counted == {name: row["requests"] for name, row in logs.items() if row["requests"]}


def test_logs_of_one_name_are_told_from_one_another_by_folder(tmp_path):
    paths = []
    for folder in ("monday", "tuesday"):
        (tmp_path / folder).mkdir()
        paths.append(save(tmp_path / folder / "run.jsonl", lines([litellm(0)])))
    names = [row["log_id"] for row in rows(read_logs(paths), "production_logs")]
    assert names == ["monday/run", "tuesday/run"]


def test_a_file_given_twice_is_two_logs():
    path = DATA / "sglang_requests.log"
    names = [row["log_id"] for row in rows(read_logs([path, path]), "production_logs")]
    assert names == ["sglang_requests#1", "sglang_requests#2"]
