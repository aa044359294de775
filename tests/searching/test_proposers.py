"""Proposers of one's own: files in order, commands that learn; what is left out is counted, what fails is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kernelsight.caches.journal import journal_path
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.searching.proposers import candidates_of, parsed, proposer_of, read_configurations
from kernelsight.searching.scenarios import scenario_rows
from kernelsight.searching.search import search
from tests.asked import refusals
from tests.searching.made_spaces import made_rows, made_tables

TABLES = made_tables()
IDS = TABLES.kernel_candidates["candidate_id"].to_pylist()
PARAMETERS = dict(zip(IDS, map(json.loads, TABLES.kernel_candidates["parameters"].to_pylist()), strict=True))
SCENARIO = scenario_rows([{"space": "made", "gpu": "two", "budget_measurements": 12, "batch": 4, "proposer": "given"}])[
    0
]


def searched(stated: str, wanted: int = 8, limit: float = 30.0, scenario=SCENARIO, **more) -> dict[str, pa.Table]:
    def proposer(arrays, target):
        return proposer_of(stated, candidates_of(arrays, target, TABLES.kernel_candidates), target, wanted, limit)

    return search(TABLES, scenario, proposer=proposer, **more)


def listed(folder: Path, configurations: list, name: str = "p.json") -> str:
    (folder / name).write_text(json.dumps(configurations))
    return str(folder / name)


@pytest.fixture
def script(tmp_path: Path):
    """Return a command that runs Python code with what it is told as ``told``."""

    def command(code: str) -> str:
        path = tmp_path / "propose.py"
        path.write_text("import json, sys, time\ntold = json.load(sys.stdin)\n" + code)
        return f"'{sys.executable}' '{path}'"

    return command


def test_only_what_a_file_proposes_is_measured_and_in_its_order_where_that_is_the_policy(tmp_path):
    names = [IDS[place] for place in range(3, 320, 13)]
    stated = listed(tmp_path, [PARAMETERS[name] for name in names])
    found = searched(stated, scenario=SCENARIO | {"policy": "order"})
    assert found["search_measurements"]["candidate_id"].to_pylist() == [*names[:4], *names[4:8], *names[8:12]]
    chosen = searched(stated)
    assert set(chosen["search_measurements"]["candidate_id"].to_pylist()) <= set(names)
    assert chosen["search_rounds"]["proposed"].to_pylist() == [8, 16, 24]
    best = {name: found["search_summary"]["best_us"][0].as_py() for name, found in (("o", found), ("s", chosen))}
    assert best["s"] <= best["o"]


def test_what_cannot_be_used_is_counted_and_said(tmp_path):
    one = {**PARAMETERS[IDS[0]]}
    strange = {**one, "vector": 3}
    stated = listed(tmp_path, [one, strange, one, *({"candidate_id": name} for name in IDS[1:30])])
    notes = searched(stated)["search_summary"]["notes"][0].as_py()
    assert "1 proposals are no candidates of 'made' that can be measured, such as block_size_x=" in notes
    assert "vector=3: left out" in notes
    assert "1 proposals had been made before: left out" in notes
    with pytest.raises(RunFailed, match="the proposer gave no candidate that could be measured; 2 proposals are no"):
        searched(listed(tmp_path, [strange, strange]))


def test_a_search_ends_when_nothing_is_proposed_any_more(tmp_path):
    found = searched(listed(tmp_path, [PARAMETERS[name] for name in IDS[:6]]))
    assert sorted(set(found["search_measurements"]["candidate_id"].to_pylist())) == sorted(IDS[:6])


@pytest.mark.parametrize("kind", ["jsonl", "parquet ids", "parquet parameters"])
def test_files_of_every_kind_are_read(tmp_path, kind):
    names = IDS[:5]
    if kind == "jsonl":
        path = tmp_path / "p.jsonl"
        path.write_text("\n".join(json.dumps(PARAMETERS[name]) for name in names) + "\n\n")
        assert read_configurations(path) == [PARAMETERS[name] for name in names]
        return
    path = tmp_path / "p.parquet"
    if kind == "parquet ids":
        pq.write_table(pa.table({"candidate_id": names}), path)
        assert read_configurations(path) == [{"candidate_id": name} for name in names]
    else:
        pq.write_table(pa.table({"parameters": [json.dumps(PARAMETERS[name]) for name in names]}), path)
        assert read_configurations(path) == [PARAMETERS[name] for name in names]


LEARNS = """
best = min((m for m in told["measured"] if m["latency_us"]), key=lambda m: m["latency_us"], default=None)
start = best["parameters"] if best else {name: values[len(values) // 2] for name, values in told["values"].items()}
near = [{**start, name: value} for name, values in told["values"].items() for value in values]
with open(sys.argv[0] + ".log", "a") as log:
    print(json.dumps([told["round"], told["wanted"], len(told["measured"]), told["space"], told["gpu"]]), file=log)
print(json.dumps(near))
"""


def test_a_command_learns_from_what_was_measured(script, tmp_path):
    command = script(LEARNS)
    scenario = SCENARIO | {"budget_measurements": 40}
    found = searched(command, wanted=20, scenario=scenario)
    told = [json.loads(line) for line in (tmp_path / "propose.py.log").read_text().splitlines()]
    assert told == [[number, 20, 4 * (number - 1), "made", "two"] for number in range(1, 11)]
    assert found["search_summary"]["regret"][0].as_py() < 0.1
    assert "proposals had been made before: left out" in found["search_summary"]["notes"][0].as_py()


def test_a_killed_search_asks_for_no_proposals_twice(script, tmp_path):
    command, target = script(LEARNS), tmp_path / "run.duckdb"
    measured = TABLES.kernel_measurements.filter(pc.equal(TABLES.kernel_measurements["gpu"], "two"))
    known = {row["candidate_id"]: row for row in measured.to_pylist()}

    def measuring(limit):
        calls = []

        def measure(candidates):
            if len(calls) >= limit:
                raise KeyboardInterrupt
            calls.extend(candidates["candidate_id"].to_pylist())
            return pa.Table.from_pylist([known[name] for name in candidates["candidate_id"].to_pylist()])

        return measure

    expected = searched(command, measurer=measuring(100))
    log = tmp_path / "propose.py.log"
    asked = log.read_text()
    log.unlink()
    with pytest.raises(KeyboardInterrupt):
        searched(command, measurer=measuring(6), output=target)
    found = searched(command, measurer=measuring(100), output=target, resume=True)
    assert all(found[name].equals(expected[name]) for name in expected)
    assert log.read_text() == asked
    path = journal_path(target)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    with pytest.raises(InvalidInput, match="the journal has no proposals of round 1 where they should be"):
        searched(command, measurer=measuring(100), output=target, resume=True)


@pytest.mark.parametrize(
    ("code", "error", "sentence"),
    refusals("searching/test_proposers::test_a_command_that_fails_is_refused_in_a_sentence"),
)
def test_a_command_that_fails_is_refused_in_a_sentence(script, code, error, sentence):
    with pytest.raises(error, match=sentence):
        searched(script(code), limit=1.0 if "sleep" in code else 30.0)


def test_a_command_that_prints_without_end_is_killed(script, tmp_path):
    code = "print('x' * 5_000_000, flush=True); time.sleep(5); open(sys.argv[0] + '.went-on', 'w')"
    with pytest.raises(RunFailed, match="printed more than 4,194,304 bytes in round 1"):
        searched(script(code))
    assert not (tmp_path / "propose.py.went-on").exists()


def test_what_is_more_than_a_round_takes_is_left_out(script):
    command = script("print(json.dumps([{'candidate_id': name} for name in " + repr(IDS[:30]) + "]))")
    found = searched(command, scenario=SCENARIO | {"budget_measurements": 4})
    assert found["search_rounds"]["proposed"].to_pylist() == [8]
    assert found["search_summary"]["notes"][0].as_py() == "22 proposals were more than a round takes (8): left out"


def test_what_an_earlier_round_proposed_is_not_new(script):
    command = script("print(json.dumps([{'candidate_id': name} for name in " + repr(IDS[:8]) + "]))")
    found = searched(command, scenario=SCENARIO | {"budget_measurements": 8})
    assert found["search_rounds"]["proposed"].to_pylist() == [8, 8]
    assert found["search_summary"]["notes"][0].as_py() == "8 proposals had been made before: left out"


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ("missing.json", "--propose missing.json does not exist; give a JSON list"),
        ("no-such-program --x", "--propose cannot run 'no-such-program': No such file"),
        ("", "--propose is empty; give a .json, .jsonl or .parquet file, or a command"),
        ("'open", "cannot be split into words"),
    ],
)
def test_a_proposer_that_is_not_there_is_refused(stated, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        searched(stated)


def test_files_without_configurations_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="holds no configurations"):
        searched(listed(tmp_path, []))
    pq.write_table(pa.table({"other": [1]}), tmp_path / "p.parquet")
    with pytest.raises(InvalidInput, match="has no column candidate_id or parameters"):
        searched(str(tmp_path / "p.parquet"))
    (tmp_path / "p.parquet").write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="cannot be read as Parquet"):
        searched(str(tmp_path / "p.parquet"))


def test_a_given_proposer_and_its_scenario_go_together():
    with pytest.raises(InvalidInput, match="--propose names a file or a command"):
        search(TABLES, SCENARIO)


def test_parameters_that_never_vary_may_be_left_out(tmp_path):
    from kernelsight.searching.space_files import space_tables

    rows = made_rows().to_pylist()
    for row in rows:
        row["parameters"] = json.dumps({**json.loads(row["parameters"]), "filter": 15})
    tables = space_tables(pa.Table.from_pylist(rows, schema=made_rows().schema), "made.parquet")
    stated = listed(tmp_path, [PARAMETERS[name] for name in IDS[:20]])

    def proposer(arrays, target):
        return proposer_of(stated, candidates_of(arrays, target, tables.kernel_candidates), target, 20, 1.0)

    found = search(tables, SCENARIO, proposer=proposer)
    assert np.all(["filter=15" in name for name in found["search_measurements"]["candidate_id"].to_pylist()])


def test_text_that_is_one_configuration_is_read():
    assert parsed('{"tile": 2}') == [{"tile": 2}]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"tile": 2}\n' + "[" * 100_000])
def test_text_that_is_nested_too_deep_is_refused(text):
    with pytest.raises(InvalidInput, match=r"^the proposal '\[{60}' is no JSON;"):
        parsed(text)
