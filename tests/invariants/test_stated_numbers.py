"""Stated numbers hold their relations on every face that states them, and are the same on each.

Faces: JSON, a query of the saved run, the tools of `mcp`, a sweep, the terminal, the page, and `/metrics` of `serve`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hostile import of_one

import kernelsight as ks
from kernelsight.number_format import number
from tests.cli.conftest import run_command

LENGTHS = {"input_len": 200, "output_len": 8, "num_prompts": 24}
ON_L4 = {"model": "qwen3-0.6b", "gpu": "l4", **LENGTHS}
# the pinned scenarios: an open load at rest, an overloaded one, a closed one without room, pools, replicas, drafts
SCENARIOS: dict[str, dict[str, Any]] = {
    "open": ON_L4 | {"request_rate": 20.0, "range_ratio": 0.5},
    "overloaded": ON_L4 | {"request_rate": 400.0, "num_prompts": 200, "output_len": 40, "max_num_seqs": 8},
    "without room": ON_L4 | {"max_concurrency": 16, "kv_cache_tokens": 1100, "output_len": 60},
    "shared prefixes": ON_L4 | {"request_rate": 30.0, "prefix_len": 160, "enable_prefix_caching": True},
    "pools": ON_L4 | {"request_rate": 10.0, "prefill_replicas": 1, "replicas": 1, "gpu": "h100_sxm"},
    "replicas": ON_L4 | {"request_rate": 40.0, "replicas": 2, "data_parallel_size": 1},
    "drafts": ON_L4 | {"request_rate": 10.0, "num_speculative_tokens": 3, "draft_acceptance_rate": 0.6,
                       "speculative_method": "ngram"},
}  # fmt: skip


def words_of(flags: Mapping[str, Any]) -> list[str]:
    """Return flags as words of a command."""
    words = []
    for name, value in flags.items():
        words += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
    return words


def flat(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a JSON answer by the columns of scenario_summary: ttft_ms.mean is ttft_mean_ms."""
    row = {}
    for name, value in answer.items():
        if name.endswith("_ms") and isinstance(value, dict):
            row |= {f"{name[:-3]}_{part}_ms": each for part, each in value.items()}
        elif not isinstance(value, dict | list):
            row[name] = value
    power, energy = answer["power_w"], answer["energy"]
    ends = {"": "mean", "_low": "low", "_high": "high"}
    row |= {f"mean_power_w{end}": power[part] for end, part in ends.items()}
    row |= {f"energy_per_output_token_j{end}": energy[f"j_per_output_token{end}"] for end in ends}
    return row | {f"energy_per_request_j{end}": energy[f"j_per_request{end}"] for end in ends}


def stated_by(flags: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return what each face states of a scenario."""
    words = ["simulate", *words_of(flags)]
    answer = run_command(*words, "--format", "json", "-o", folder / "run.duckdb")
    assert answer.status == 0, answer.err
    rows = run_command("sql", "select * from scenario_summary", "--db", folder / "run.duckdb", "--format", "json")
    breakdown = run_command("sql", "select sum(share) as share from kernel_breakdown", "--db", folder / "run.duckdb",
                            "--format", "json")  # fmt: skip
    with ks.connect(files=False) as session:
        swept = session.sweep([flags], intervals=False).summary.to_pylist()
    return {"json": answer.json, "sql": rows.json[0], "sweep": swept[0], "share": breakdown.json[0]["share"],
            "terminal": run_command(*words).out}  # fmt: skip


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "open" else pytest.mark.whole) for name in SCENARIOS
])  # fmt: skip
def test_stated_numbers_fit_together_and_are_the_same_on_each_face(name: str, tmp_path: Path) -> None:
    stated = stated_by(SCENARIOS[name], tmp_path)
    relations_hold(stated)
    numbers_are_the_same(stated)
    figures_are_printed(stated["sql"], "terminal", stated["terminal"])
    if find_spec("vl_convert"):
        page = tmp_path / "page.html"
        assert run_command("simulate", *words_of(SCENARIOS[name]), "-o", page).status == 0
        text = re.sub(r"(?s)<(script|style).*?</\1>", "", page.read_text(encoding="utf-8"))
        figures_are_printed(stated["sql"], "page", html.unescape(re.sub(r"<[^>]+>", " ", text)))
    if find_spec("mcp"):
        from kernelsight.server.tool_functions import answer_of

        told, asked = flat(answer_of("simulate", SCENARIOS[name], {})), flat(stated["json"])
        asked.pop("kernelsight_version")  # of the command alone
        assert {each for each in asked if told[each] != asked[each]} == set()


def relations_hold(stated: Mapping[str, Any]) -> None:
    rows = {"sql": stated["sql"], "json": stated["sql"] | flat(stated["json"]), "sweep": stated["sweep"]}
    found = [(face, *finding) for face, row in rows.items() for finding in of_one(row, face)]
    assert [finding for finding in found if finding[2] > 0] == [] and len(found) > 60
    numbers = flat(stated["json"])
    assert all(low <= numbers[each] <= high for each, (low, high) in stated["json"]["interval_90"].items())
    assert stated["share"] == pytest.approx(1.0)


def numbers_are_the_same(stated: Mapping[str, Any]) -> None:
    sql, compared = stated["sql"], 0
    for face, row in {"json": flat(stated["json"]), "sweep": stated["sweep"]}.items():
        for name in row.keys() & sql.keys():
            same = row[name] == sql[name] or row[name] == pytest.approx(sql[name], rel=1e-12)
            assert same or isinstance(row[name], str), (face, name)
            compared += 1
    assert compared > 100


def figures_are_printed(row: Mapping[str, Any], face: str, text: str) -> None:
    names = [f"{metric}_{part}_ms" for metric in ("ttft", "tpot", "e2e") for part in ("mean", "p50", "p90", "p99")]
    names += ["output_throughput", "request_throughput", "capacity", "mean_power_w", "duration_s"]
    figures = set(re.findall(r"[\d,.]*\d", text))
    assert not {name for name in names if row[name] is not None and number(row[name]) not in figures}, face


@pytest.mark.parametrize("speed", [1.0, 10.0, 1000.0])
def test_a_server_states_what_simulate_does(speed: float) -> None:
    """One client after the other: the means of ``/metrics`` are those of a simulated closed loop of one."""
    pytest.importorskip("starlette")
    pytest.importorskip("prometheus_client")
    from kernelsight.server.start import server_of
    from kernelsight.serving.runs.step_times import deploy
    from tests.server.asgi import ask, on_loop
    from tests.server.test_metrics_relations import OPTIONS
    from tests.server.test_metrics_relations import stated as metrics_of

    flags, count, tokens = {"model": "qwen3-0.6b", "gpu": "l4"}, 5, 9
    with ks.connect() as session:
        load = {"max_concurrency": 1, "num_prompts": count, "input_len": 200, "output_len": tokens}
        summary = session.simulate(**flags, **load).summary
        server = server_of(deploy(session, flags), None, OPTIONS | {"speed": speed})

    async def main() -> None:
        for number_of_request in range(count):
            body = {"prompt": [number_of_request] * 200, "max_tokens": tokens}
            await ask(server.app, "POST", "/v1/completions", body)

    on_loop(server.app, main)
    found = metrics_of(server)
    for metric, name in (("ttft", "time_to_first_token_seconds"), ("e2e", "e2e_request_latency_seconds")):
        mean_ms = 1e3 * sum(found[f"{name}_sum"]) / sum(found[f"{name}_count"])
        assert mean_ms == pytest.approx(summary[f"{metric}_ms"]["mean"], rel=0.02), metric
