"""Two logs against each other, without a model of the engine: what changed, and what did not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight import connect
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import LOAD, Variant, conformed
from kernelsight.errors import InvalidInput
from kernelsight.session import Session
from tests.cli.conftest import run_command
from tests.comparison.test_comparison import FLAGS, drawn, log_of

N = 400


def served(
    rate: float = 3.0,
    longer: float = 1.0,
    seed: int = 1,
    seats: int = 10**6,
    prompt_us: float = 20.0,
    slow: float = 1.0,
    slow_from_s: float = 0.0,
) -> pa.Table:
    """What a client writes of a server with one queue: prompts one after the other, tokens at a pace of the batch."""
    dice = np.random.default_rng(seed)
    sent = np.cumsum(dice.exponential(1.0 / rate, N))
    prompt = (dice.integers(200, 1800, N) * longer).astype(int)
    output = dice.integers(30, 200, N)
    free, ends, first, last = 0.0, [], np.zeros(N), np.zeros(N)
    for i in range(N):
        factor = slow if sent[i] >= slow_from_s else 1.0
        start = max(sent[i], free)
        while sum(end > start for end in ends) >= seats:
            start = min(end for end in ends if end > start)
        free = start + 2e-5 * prompt[i] * factor
        first[i] = free + (prompt_us * 1e-6 * prompt[i] + 0.012) * factor
        running = sum(end > first[i] for end in ends)
        last[i] = first[i] + (output[i] - 1) * 1e-3 * (8.0 + 0.05 * running) * factor * (
            1 + 0.01 * dice.standard_normal()
        )
        ends = [end for end in ends if end > sent[i]] + [last[i]]
    columns = {"arrival_s": sent, "prompt_tokens": prompt, "output_tokens": output, "ttft_clock": ["client_send"] * N}
    return pa.table({**columns, "ttft_ms": 1e3 * (first - sent), "e2e_ms": 1e3 * (last - sent)})


def answer(session: Session, after: pa.Table, before: pa.Table | None = None) -> dict:
    return session.compare(requests=after, baseline=served() if before is None else before).summary


QUEUED = {"rate": 15.0, "longer": 2.5}
SEATS = {"rate": 12.0}


@pytest.mark.parametrize(
    ("after", "before", "kind", "name", "value"),
    [
        ({"longer": 1.6}, {}, "load", "prompt_tokens", pytest.approx(1.6, rel=0.06)),
        ({"rate": 5.0}, {}, "load", "request_rate", pytest.approx(1.79, rel=0.01)),
        (QUEUED, QUEUED | {"rate": 8.0}, "load", "request_rate", pytest.approx(1.88, rel=0.1)),
        ({"slow": 1.3, "slow_from_s": 70.0}, {}, "change", "gpu", pytest.approx(1.3, rel=0.07)),
        ({"prompt_us": 80.0}, {}, "front_end", "per_prompt_token_us", pytest.approx(60.0, rel=0.15)),
        (SEATS | {"seats": 6}, SEATS, "setting", "max_num_seqs", 6),
    ],
)
def test_what_changed_is_the_first_cause(
    session: Session, after: dict, before: dict, kind: str, name: str, value: object
) -> None:
    found = answer(session, served(seed=2, **after), served(**before))
    assert (found["cause"]["kind"], found["cause"]["name"], found["cause"]["value"]) == (kind, name, value)
    assert len(found["causes"]) == 1 or kind != "load", "a changed load is no fault of the engine"
    if kind == "change":
        assert found["cause"]["from_s"] == pytest.approx(70, abs=6)
    if name == "prompt_tokens":
        assert found["parts"][0]["part"] == "workload" and "1.61 times what was before" in found["verdict"]
    if after is QUEUED:  # the queue is twice as long; most of it follows from the prompts in front
        factors = {row["what"]: row["factor"] for row in found["changes"]}
        assert factors["ttft_at_the_same_load"] < 1.5


def simulated(seed: int, rate: float = 12.0, longer: float = 1.0, **changed: int) -> pa.Table:
    """What a client writes of the simulated server: planted are its load and its settings."""
    dice = np.random.default_rng(seed)
    arrival = np.cumsum(dice.exponential(1.0 / rate, N))
    prompts, outputs = (dice.integers(200, 2500, N) * longer).astype(int), dice.integers(20, 300, N)
    columns = {"load_id": [LOAD] * N, "request_id": np.arange(N), "arrival_s": arrival - arrival[0]}
    load = conformed({**columns, "prompt_tokens": prompts, "output_tokens": outputs})
    with connect() as session:
        (served,) = LogReplayer(session, load).serve([Variant({**FLAGS, **changed})], with_parts=False)
    return log_of(load, served)


@pytest.fixture(scope="module")
def before() -> pa.Table:
    return simulated(1, max_num_seqs=39)


def certain(found: dict) -> set[str]:
    return {row["what"] for row in found["changes"] if row["certain"]}


# figures that a cause of a name changes; one of them has to be beyond chance where the cause is named
ROWS_OF = {
    "max_num_seqs": {"running_max"},
    "enable_prefix_caching": {"cached_share"},
    "request_rate": {"request_rate"},
    "prompt_tokens": {"prompt_tokens"},
    "output_tokens": {"output_tokens"},
}
SPEED = {"ttft_at_the_same_load", "decode_at_the_same_load"}


def agrees_with_its_table(found: dict) -> bool:
    """Whether each cause has a row beyond chance, and the load is none where all of its rows are chance."""
    rows = certain(found)
    of_load = rows & {"request_rate", "prompt_tokens", "output_tokens", "cached_share"}
    return all(rows & ROWS_OF.get(cause["name"], SPEED) for cause in found["causes"]) and (
        "the load makes" not in found["verdict"] or bool(of_load)
    )


def test_fewer_seats_are_the_cause_and_beyond_chance_and_the_load_is_none(session: Session, before: pa.Table) -> None:
    """Fewer requests run at once, so that each is decoded faster: that is no change of the load."""
    found = answer(session, simulated(2, max_num_seqs=14), before)
    assert [(cause["name"], cause["value"]) for cause in found["causes"]] == [("max_num_seqs", 14)]
    running = next(row for row in found["changes"] if row["what"] == "running_max")
    assert (running["before"], running["after"], running["certain"]) == (39, 14, True) and "e2e_ms" in certain(found)
    assert "the load makes" not in found["verdict"] and agrees_with_its_table(found)


@pytest.mark.parametrize(("changed", "name"), [({"rate": 16.0}, "request_rate"), ({"longer": 1.4}, "prompt_tokens")])
def test_a_changed_load_alone_is_the_only_cause(session: Session, before: pa.Table, changed: dict, name: str) -> None:
    found = answer(session, simulated(2, max_num_seqs=40, **changed), before)
    assert [cause["name"] for cause in found["causes"]] == [name] and name in certain(found)
    assert agrees_with_its_table(found)


def test_another_run_of_the_same_server_and_load_is_chance(session: Session, before: pa.Table) -> None:
    """Of twelve runs that differ by chance alone one in twenty may look changed, and none has a cause."""
    found = [answer(session, simulated(seed, max_num_seqs=39), before) for seed in range(2, 14)]
    assert all(each["causes"] == [] and agrees_with_its_table(each) for each in found)
    alike = [each for each in found if not certain(each)]
    assert len(alike) >= 10
    assert all("both logs agree" in each["verdict"] or "no change beyond" in each["verdict"] for each in alike)


def test_means_and_percentiles_are_those_of_the_logs(session: Session) -> None:
    after, before = served(seed=2), served()
    found = session.compare(requests=after, baseline=before)
    e2e = [np.array(log["e2e_ms"]) for log in (after, before)]
    own = found.summary
    assert (own["e2e_ms"]["measured"], own["e2e_ms"]["predicted"]) == pytest.approx(tuple(each.mean() for each in e2e))
    p99 = own["percentiles"]["e2e_ms"]["p99"]
    assert p99["measured"] in e2e[0] and p99["predicted"] in e2e[1] and p99["measured"] > np.median(e2e[0])
    assert own["parts"][0]["miss_ms"] + own["parts"][1]["miss_ms"] == pytest.approx(
        e2e[0].mean() - e2e[1].mean(), abs=0.05
    )
    with pytest.raises(InvalidInput, match="has no table 'miss_by_part'"):
        found.table("miss_by_part")


def test_what_the_model_gets_wrong_of_both_logs_cancels() -> None:
    with connect() as session:
        load = drawn(n=300)
        truth = [Variant(FLAGS, step_us=us, request_us=25_000.0) for us in (2000.0, 5000.0)]
        before, slower = (log_of(load, one) for one in LogReplayer(session, load).serve(truth))
        same = session.compare(requests=before, baseline=before, deployment=FLAGS).summary
        found = session.compare(requests=slower, baseline=before, deployment=FLAGS).summary
    assert same["causes"] == [] and same["verdict"].startswith("both logs agree")
    assert (found["cause"]["kind"], found["cause"]["name"]) == ("part", "host")
    # three milliseconds a step, and the larger batch that grows of them
    assert 2.7 < found["cause"]["value"] < 4.5 and found["parts"][0]["part"] == "unexplained"


def test_the_command_needs_no_model(tmp_path: Path) -> None:
    for name, log in (("after", served(rate=5.0, seed=2)), ("before", served())):
        pq.write_table(log, tmp_path / f"{name}.parquet")
    words = ["compare", "--log", tmp_path / "after.parquet", "--baseline", tmp_path / "before.parquet"]
    page = run_command(*words).out
    assert "requests per second are 1.79 times what was before" in page and "beyond chance" in page
    assert "requests/s" in page and "J/token" not in page
    found = run_command(*words, "--format", "json").json
    assert found["cause"]["name"] == "request_rate" and {row["what"] for row in found["changes"]} >= {"in_flight"}


def test_an_earlier_log_without_requests_is_refused(session: Session) -> None:
    with pytest.raises(InvalidInput, match="later log holds no requests|no request that succeeded|prompt length"):
        session.compare(requests=served().slice(0, 0), baseline=served())


def test_power_of_both_logs_is_compared_where_both_measured_it(session: Session) -> None:
    def drew(log: pa.Table, watts: float) -> pa.Table:
        return log.append_column("power_w", pa.array(watts + 0.2 * (np.arange(log.num_rows) % 2)))

    before, after = served(), served(seed=2)
    found = answer(session, drew(after, 500.0), drew(before, 400.0))
    rows = {row["what"]: row for row in found["changes"] if row["kind"] == "power"}
    assert rows.keys() == {"power_w", "energy_per_output_token_j"}
    assert rows["power_w"]["factor"] == pytest.approx(500.1 / 400.1, abs=0.001) and rows["power_w"]["certain"]
    assert "its GPUs drew 500 W, before 400 W" in found["verdict"]
    ends = np.array(before["arrival_s"]) + np.array(before["e2e_ms"]) / 1e3
    spent_j = rows["power_w"]["before"] * (ends.max() - before["arrival_s"][0].as_py())
    per_token = spent_j / np.array(before["output_tokens"]).sum()
    assert rows["energy_per_output_token_j"]["before"] == pytest.approx(per_token, rel=1e-6)
    alone = answer(session, drew(after, 500.0), before)
    assert not [row for row in alone["changes"] if row["kind"] == "power"] and "drew" not in alone["verdict"]
    same = answer(session, drew(after, 400.0), drew(before, 400.0))
    assert not any(row["certain"] for row in same["changes"] if row["what"] == "power_w")
    assert "drew" not in same["verdict"]
