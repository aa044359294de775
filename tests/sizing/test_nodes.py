"""Sizing as a node: questions in a table, their answers in SQL, several in one call, kept in a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.scenario.stated_flags import object_text
from kernelsight.session import Session, connect
from kernelsight.sizing.answer import Sizing
from kernelsight.sizing.question import question_of
from kernelsight.sizing.size_tables import TABLES
from tests.asked import refusals

from .conftest import FLAGS, LOAD, SLO

# what a deployment served at a rate is served once for all questions
pytestmark = pytest.mark.usefixtures("kept_trials")

QUESTION = {
    "flags": object_text(FLAGS | LOAD),
    "gpus": ["h100_sxm"],
    "slo": [{"statistic": name, "most_ms": most} for name, most in SLO.items()],
    "max_gpus": 1,
    "tune": False,
}
PRICED = {"prices": [{"gpu": "h100_sxm", "price_per_gpu_hour": 2.5}]}


@pytest.fixture(scope="module")
def answered() -> Session:
    session = connect()
    hours = [10.0] * 12 + [900.0] * 12
    amounts = [{"rate": 500.0}, {"total_gpus": 3}, {"hours": hours, "hours_from": "two halves"} | PRICED]
    session.give("size_questions", [{"question_id": f"{i}"} | QUESTION | one for i, one in enumerate(amounts)])
    return session


@pytest.fixture(scope="module")
def found(answered: Session) -> Sizing:
    return answered.size(gpus="h100_sxm", slo=SLO, rate=500, max_gpus=1, tune=False, **FLAGS, **LOAD)


@pytest.mark.whole
def test_several_questions_are_answered_in_one_call(answered: Session) -> None:
    rows = answered.sql(
        "select question_id, gpu, instances, served, value_ms <= most_ms, price_per_hour / instances "
        "from sized_deployments join size_statistics using (question_id, place) where statistic = 'ttft_p95_ms'"
    ).fetchall()
    rated, total, priced = rows
    assert rated[:2] == ("0", "h100_sxm") and rated[3] == 500.0 and rated[5] is None
    assert total[:3] == ("1", "h100_sxm", 3) and priced[0] == "2" and priced[5] == 2.5
    assert all(row[4] for row in rows)
    checked = answered.sql("select hour, ratio, keeps, instances from size_hours where keeps is not null").fetchall()
    assert [row[2] for row in checked] == [True, True] and sorted(row[3] for row in checked) == [1, priced[2]]
    assert all(0.0 < row[1] <= 1.0 for row in checked)
    days = answered.sql("select question_id, count(*), min(instances), max(instances) from size_hours group by all")
    ((question, hours, least, most),) = days.fetchall()
    assert (question, hours) == ("2", 24) and 1 <= least < most == priced[2]
    assert "(two halves)" in answered.sql("select answer from size_answers where question_id = '2'").fetchall()[0][0]


def test_every_component_of_a_sized_deployment_says_what_it_rests_on(answered: Session, found: Sizing) -> None:
    run = answered.simulate(**FLAGS, **LOAD, gpu="h100_sxm", request_rate=1, num_prompts=4)
    alone = run.table("deployment_evidence").to_pylist()
    # how much of the time each takes depends on how far the load reaches
    said, of_run = (
        {row["component"]: set(row["evidence"].split("; ")) for row in rows} for rows in (found.evidence, alone)
    )
    assert said == of_run
    assert found.as_dict()["evidence"] == found.evidence and "host" in {row["component"] for row in found.evidence}
    places = answered.sql("select question_id, place, count(*) from size_evidence group by all order by all").fetchall()
    assert places == [(number, 1, len(alone)) for number in "012"]


def test_a_question_is_answered_as_python_answers_it(answered: Session, found: Sizing) -> None:
    own = answered.sql("select answer from size_answers where question_id = '0'").fetchall()
    assert own == [(found.answer,)] and found.table("sized_deployments").num_rows == len(found.rows) == 1
    assert found.sql("select count(*) from size_questions").fetchall() == [(1,)]
    with pytest.raises(InvalidInput, match="a sizing has no table 'sizes'; it has size_questions, size_answers"):
        found.table("sizes")


def test_a_saved_answer_is_read_and_its_question_answered_again(found: Sizing, tmp_path: Path) -> None:
    found.save(tmp_path / "answer.duckdb")
    with connect(tmp_path / "answer.duckdb", read_only=True) as saved:
        kept = saved.table("sized_deployments")
        assert kept.equals(found.table("sized_deployments")) and saved.table("sizing").num_rows == 1
        with connect() as again:
            again.give("size_questions", saved.table("size_questions"))
            assert again.table("sized_deployments").equals(kept)


def test_what_makes_an_answer_is_explained() -> None:
    with connect() as session:
        drawn = session.explain("size_costs")
        assert "size_costs: 1 step\nmissing   size_questions\n" in drawn and f"   1  {TABLES[0]}, " in drawn
        assert "function: Search GPUs, parallel sizes and settings" in drawn and "step_costs" not in drawn
        opened = session.explain("size_answers", opened=True)
        axes, confidences = (session.explain(name) for name in ("size_axes", "size_confidences"))
    assert "inside size_answers, which gives what is missing: " in opened and "  step_costs, " in opened
    assert "from size_bounds, unsized_deployments" in axes and "from size_costs" in confidences
    assert max(map(len, opened.splitlines())) <= 100
    inside = opened.partition("inside size_answers: ")[2].partition("inside size_answers, which")[0]
    for table in (name for name in TABLES if name not in ("size_axes", "size_confidences")):
        assert f"{table}" in inside, table
    assert "   2  size_bounds\n" in inside and "from scenarios, size_bounds\n" in inside


def test_a_search_computes_what_its_steps_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, set[str]] = {}
    with connect() as session:
        node = session.graph.node("size_answers")
        marked = {step.source.function: set(step.fetches) for step in node.steps}
        assert len(marked) == len(node.steps) and node.fetches and set(node.fetches) == set().union(*marked.values())
        compute = Session.compute

        def noted(self: Session, *names: str) -> None:
            frame = sys._getframe(1)
            callers = [frame] if frame else []
            while callers[-1].f_back and callers[-1].f_code.co_name != "size_tables":
                callers.append(callers[-1].f_back)
            functions = [caller.f_code.co_name for caller in callers]
            own = [name for name in names if self.graph.node(name)]
            if "_compute" not in functions[: len(functions) - 1] and functions[-1] == "size_tables":
                asked.setdefault(next((one for one in functions if one in marked), ""), set()).update(own)
            compute(self, *names)

        monkeypatch.setattr(Session, "compute", noted)
        session.size(rate=200, gpus="h100_sxm", slo=SLO, max_gpus=2, **FLAGS | {"max_num_batched_tokens": None}, **LOAD)
    assert asked.pop("") <= set(node.fetches)
    assert {name: tables for name, tables in asked.items() if tables} == {
        name: tables for name, tables in marked.items() if tables
    }


@pytest.mark.parametrize(
    ("change", "words"),
    refusals("sizing/test_nodes::test_a_question_that_cannot_be_answered_is_refused"),
)
def test_a_question_that_cannot_be_answered_is_refused(change: dict, words: str) -> None:
    with connect() as session, pytest.raises(InvalidInput, match=words):
        session.give("size_questions", [{"question_id": "q"} | QUESTION | {"rate": 5.0} | change])
        session.table("size_answers")


def test_a_launch_line_is_kept_as_flags_alone() -> None:
    line = "vllm serve Qwen/Qwen3-0.6B --api-key hush --max-num-seqs 32"
    row = question_of(QUESTION | {"flags": object_text({"launch": line}), "rate": 2.0}).as_row("q")
    assert "hush" not in str(row) and '"max_num_seqs": 32' in row["flags"]


def test_changes_of_a_question_are_answered_beside_it(answered: Session) -> None:
    asked = {"gpus": "h100_sxm", "slo": SLO, "max_gpus": 1, "tune": False, **FLAGS, **LOAD}
    found = answered.size(rate=500, what_if=["traffic=2", "traffic=2,output=2"], **asked)
    assert [one["change"] for one in found.what_if] == ["traffic=2", "traffic=2,output=2"]
    twice, longer = (one["rows"][0] for one in found.what_if)
    assert twice["served"] == 1000.0 == longer["served"] and twice["instances"] >= 2 * found.chosen["instances"] - 1
    assert longer["rate"] < twice["rate"] == found.chosen["rate"] and found.as_dict()["what_if"] == found.what_if
    assert found.what_if[0]["answer"] == answered.size(rate=1000, **asked).answer
    rows = found.sql("select question_id, gpus from sized_deployments where place = 1 order by gpus").fetchall()
    assert len(rows) == 3 and found.table("size_answers").num_rows == 3
    changes = ["kv_cache_dtype=fp8", "ttft_p95:1ms", "max_num_batched_tokens=none,traffic=2"]
    changes += ["max_num_seqs=none", "model=qwen9"]
    narrow, strict, wide, none, unknown = answered.size(rate=500, what_if=changes, **asked).what_if
    assert unknown["rows"] == [] and unknown["answer"].startswith("unknown model 'qwen9'")
    assert none["rows"] == [] and "max_num_batched_tokens 512 is less than max_num_seqs 1024" in none["answer"]
    assert narrow["rows"][0]["kv_cache_dtype"] == "fp8" and "No deployment keeps TTFT p95 of 1 ms" in strict["answer"]
    assert "max_num_batched_tokens" not in wide["rows"][0] and wide["rows"][0]["served"] == 1000.0
    for change, words in (
        ("max_num_seqs=many", "give a whole number"),
        ("ttft_p95:soon", "soon"),
        ("request_rate=3", "request_rate"),
        ("trafic=2", "trafic"),
        ("users=2", "changes what the question does not state"),
        ("prompt=0", "what_if prompt"),
        ("prompt", "prompt"),
        ("output=nan", "output"),
    ):
        with pytest.raises(InvalidInput, match=words):
            answered.size(rate=500, what_if=change, **asked)


def test_a_search_opens_to_its_axes_bounds_simulations_and_confidences(session: Session) -> None:
    gpus = {"gpus": "h100_sxm,l4", "prices": "h100_sxm=2.5,l4=0.7", "max_gpus": 2}
    found = session.size(rate=200, slo=SLO, **gpus, **FLAGS | {"max_num_batched_tokens": None}, **LOAD)
    bounds, simulated = (found.table(name).to_pylist() for name in ("size_bounds", "size_simulations"))
    assert found.axes["gpu"] == ["h100_sxm", "l4"] and found.axes["tensor_parallel_size"] == ["1", "2"]
    assert found.axes["max_num_batched_tokens"][:2] == ["default", "1024"] and "1" in found.axes["decode_replicas"]
    key = ("gpu", "tensor_parallel_size", "flags")
    by_deployment = {tuple(row[name] for name in key): row for row in bounds}
    assert len(by_deployment) == len(bounds) and found.complete
    # no load that was simulated and holds is above the bound, and no row of the answer
    assert all(
        row["load"] <= by_deployment[tuple(row[name] for name in key)]["most_load"] for row in simulated if row["keeps"]
    )
    for row in found.table("sized_deployments").to_pylist():
        bound = by_deployment[tuple(row[name] for name in key)]
        assert row["rate"] <= bound["most_load"] and bound["rests_on"] == "its own closed loops"
        assert row["price_per_hour"] >= bound["least_cost"] and row["rate_high"] <= max(bound["most_load"], row["rate"])
    # complete: what has no rate costs as much at least, by a bound of its own or of other numbers of its replicas
    assert all(row["bound"] >= found.chosen["price_per_hour"] for row in found.left_out if row["bound"])
    # more confidence costs more; at the confidence asked it is the answer
    costs = [(row["confidence"], row["price_per_hour"]) for row in found.confidences]
    assert costs == sorted(costs) and [cost for _, cost in costs] == sorted(cost for _, cost in costs)
    assert (0.9, found.chosen["price_per_hour"]) in costs and len(costs) >= 5
    assert found.question["slo"][0]["most_ms"] == SLO[found.question["slo"][0]["statistic"]]
