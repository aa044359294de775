"""Reports: pages that load nothing, with the figures of the run; drawn in a browser where one is installed."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path
from typing import Any

import pytest

from kernelsight.cli.main import main
from kernelsight.present.figures.files import figures_of
from kernelsight.present.html.page import html_of
from kernelsight.present.page import Figure, Page, Table
from kernelsight.session import Session, connect
from tests.present.conftest import KINDS, SMALL
from tests.present.html.browser import FETCHED, needs_browser, open_in_browser, specs_of, without_scripts

pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
# of runs without KV tiers
CHARTS = sum(figure.spec is not None and "KV tiers" not in figure.title for figure in figures_of("run").values())


@pytest.fixture(scope="module")
def run_page(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "run.html"
    assert main(["report", str(saved), "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def sweep_page(saved_sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "sweep.html"
    assert main(["report", str(saved_sweep), "-o", str(path)]) == 0
    return path


@pytest.mark.whole
def test_a_page_fetches_nothing(run_page: Path, sweep_page: Path) -> None:
    for path in (run_page, sweep_page):
        text = path.read_text(encoding="utf-8")
        assert not FETCHED.search(without_scripts(text))
        assert "default-src 'none'" in text and "<script src" not in text and "connect-src" not in text
        for spec in specs_of(path):
            assert "url" not in spec["data"] and spec["data"]["values"]


def test_a_report_has_its_figures_and_the_sql_behind_them(run_page: Path, saved: Path) -> None:
    text = html.unescape(run_page.read_text(encoding="utf-8"))
    assert "24 of 24" in text and "qwen3-0.6b on 2 × l4" in text
    assert len(specs_of(run_page)) == CHARTS
    with connect(saved, read_only=True) as opened:
        for figure in figures_of("run").values():
            rows = opened.query(figure.sql)
            assert (figure.sql.strip() in text) == (rows.num_rows > 0)
            assert (rows.num_rows > 0) == ("KV tiers" not in figure.title), figure.title
        (summary,) = opened.table("scenario_summary").to_pylist()
    assert f"{summary['ttft_p99_ms']:.4g}" in text


def test_kernels_as_output_grows_are_shares_of_the_time_between_tokens(run_page: Path, saved: Path) -> None:
    drawn = specs_of(run_page)[-1]["data"]["values"]
    shares: dict[int, list[float]] = {}
    for row in drawn:
        shares.setdefault(row["place"], []).append(row["share"])
    assert set(shares) <= set(range(21)) and len(shares) > 10
    assert all(sum(parts) == pytest.approx(100.0, rel=1e-4) for parts in shares.values())
    with connect(saved, read_only=True) as opened:
        tokens = opened.query("select sum(decode_tokens)::bigint as n from cache_over_time").to_pylist()[0]["n"]
    assert {row["generated"] for row in drawn if row["place"] == 20} == {f"{tokens:,}"}
    assert {row["generated"] for row in drawn if row["place"] == 0} <= {"prompt"}


def test_drawn_latencies_are_those_of_the_requests(run_page: Path, saved: Path) -> None:
    latencies, over_time, *_ = specs_of(run_page)
    with connect(saved, read_only=True) as opened:
        metrics = opened.table("request_metrics")
        gaps = opened.table("itl_percentiles").to_pylist()
    points = latencies["data"]["values"]
    for metric in ("TTFT", "TPOT", "E2E"):
        own = [row for row in points if row["metric"] == metric]
        longest = max(value for value in metrics[f"{metric.lower()}_ms"].to_pylist() if value is not None)
        assert own[-1]["percentile"] == 100 and own[-1]["ms"] == pytest.approx(longest, rel=1e-5)
    drawn = {row["percentile"]: row["ms"] for row in points if row["metric"] == "ITL"}
    median = next(row["itl_ms"] for row in gaps if row["percentile"] == 50)
    assert min(ms for percentile, ms in drawn.items() if percentile >= 50) == pytest.approx(median, rel=0.005)
    assert [
        sum(row["requests"] for row in over_time["data"]["values"] if row["metric"] == name) for name in ("TTFT", "E2E")
    ] == [24, 24]
    assert all(row["p50"] <= row["p99"] for row in over_time["data"]["values"])


def test_drawn_kernels_add_up_to_the_gpu_time(run_page: Path, saved: Path) -> None:
    with connect(saved, read_only=True) as opened:
        (row,) = opened.query("select sum(total_us) / 1e6 as gpu_s from kernel_breakdown").to_pylist()
    kernels = specs_of(run_page)[-2]
    assert sum(each["gpu_s"] for each in kernels["data"]["values"]) == pytest.approx(row["gpu_s"], rel=1e-4)


def test_the_front_of_each_load_is_its_own(sweep_page: Path) -> None:
    (front,) = specs_of(sweep_page)
    points = front["data"]["values"]
    loads = {row["load"] for row in points}
    assert loads == {"qwen3-0.6b, 200 in, 16 out", "qwen3-0.6b, 400 in, 16 out"}
    for load in loads:
        own = [row for row in points if row["load"] == load]
        for row in own:
            beaten = any(
                other["per_user"] >= row["per_user"]
                and other["per_gpu"] >= row["per_gpu"]
                and (other["per_user"], other["per_gpu"]) != (row["per_user"], row["per_gpu"])
                for other in own
            )
            assert row["on_front"] != beaten


@pytest.mark.whole
def test_one_scenario_of_a_sweep_has_the_report_of_a_run(
    saved_sweep: Path, sweep_page: Path, tmp_path: Path, session: Session
) -> None:
    found = session.what_if({**SMALL, "input_len": [200, 400], "max_num_seqs": [4, 16]})
    found.report(tmp_path / "sweep.html")
    assert specs_of(tmp_path / "sweep.html") == specs_of(sweep_page)
    name = found.scenarios[0]
    assert main(["report", str(saved_sweep), "--scenario", name, "-o", str(tmp_path / "one.html")]) == 0
    found.scenario(name).report(tmp_path / "run.html")
    assert specs_of(tmp_path / "one.html") == specs_of(tmp_path / "run.html")


@pytest.mark.parametrize("kind", ["prefill and decode replicas", "draft model"])
def test_runs_of_other_kinds_have_a_report(kind: str, session: Session, tmp_path: Path) -> None:
    run = session.simulate(**(SMALL | KINDS[kind]))
    run.report(tmp_path / "run.html")
    specs = specs_of(tmp_path / "run.html")
    assert len(specs) == CHARTS
    # every request is sent and finished in some window of the load
    windows = run.sql("select distinct start_s, end_s from cache_over_time").fetchall()
    lengths = {float(f"{start:.6g}"): end - start for start, end in sorted(windows)}
    for moment in ("sent", "finished"):
        count = sum(row[moment] * lengths[row["s"]] for row in specs[3]["data"]["values"])
        assert count == pytest.approx(24, rel=1e-3)


def test_words_of_a_run_do_not_become_markup() -> None:
    rows = [{"<b>name": "<script>alert(1)</script>", "n": 1.5}, {"<b>name": None, "n": None}]
    lines = ["<b>"]
    table, figure = Table("<b>", rows, lines, below="<b>"), Figure("<b>", "<b>", "<b>", rows=rows)
    page = Page("<b>", {}, lines, {}, lines, lambda: [figure], [table], [table], lines, ["<b>", "<b>"])
    shown = html_of(page, "<b>")
    assert "<script>alert" not in shown and "<b>" not in shown and shown.count("&lt;b&gt;") == 20


def test_refusals(saved: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(saved)]) == 2
    assert "report needs -o FILE" in capsys.readouterr().err
    assert main(["report", str(saved), "-o", str(tmp_path / "x.pdf")]) == 2
    assert "ends in '.pdf'; use one of .html" in capsys.readouterr().err
    assert main(["report", str(saved), "--scenario", "none", "-o", str(tmp_path / "x.html")]) == 2
    assert "unknown scenario 'none'" in capsys.readouterr().err


@needs_browser
@pytest.mark.whole
def test_a_browser_draws_every_chart_in_silence(run_page: Path, sweep_page: Path, tmp_path: Path) -> None:
    for path, charts in ((run_page, CHARTS), (sweep_page, 1)):
        elements, console = open_in_browser(path, tmp_path)
        # the policy of the page forbids every request, and the console names each that is refused
        assert console == []
        assert without_scripts(elements).count("<svg") == charts


def with_script(page: str, script: str) -> str:
    before, _, after = page.rpartition("</body>")
    return f"{before}<script>{script}</script></body>{after}"


def test_the_policy_names_the_scripts_of_the_page_and_compiles_no_text(run_page: Path) -> None:
    text = run_page.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    (scripts,) = [part.split()[1:] for part in policy.split("; ") if part.startswith("script-src")]
    bodies = re.findall("<script>(.*?)</script>", text, re.S)
    assert scripts == [
        f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" for body in bodies
    ]
    assert len(scripts) == 2 and "unsafe-eval" not in policy


@needs_browser
def test_a_script_of_others_does_not_run(run_page: Path, tmp_path: Path) -> None:
    page = with_script(run_page.read_text(encoding="utf-8"), "document.title = 'changed'; eval('1')")
    (tmp_path / "injected.html").write_text(page, encoding="utf-8")
    elements, console = open_in_browser(tmp_path / "injected.html", tmp_path)
    assert len(console) == 1 and "violates the following Content Security Policy" in console[0]
    assert "<title>changed" not in elements


@needs_browser
def test_a_click_on_a_head_sorts_the_table(run_page: Path, tmp_path: Path) -> None:
    script = """
      const heads = [...document.querySelectorAll("th button")];
      const head = heads.find(each => each.textContent === "e2e_ms");
      head.click(); head.click();
      const column = head.parentElement.cellIndex;
      const rows = [...head.closest("table").tBodies[0].rows];
      document.title = rows.map(row => row.cells[column].dataset.v).join(" ");
    """
    clicked = tmp_path / "clicked.html"
    page = with_script(run_page.read_text(encoding="utf-8"), script)
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    clicked.write_text(page.replace("script-src ", f"script-src 'sha256-{own}' "), encoding="utf-8")
    elements, console = open_in_browser(clicked, tmp_path)
    assert console == []
    values = [float(value) for value in re.search(r"<title>(.*?)</title>", elements)[1].split()]
    assert len(values) == 20 and values == sorted(values)


def test_a_run_that_served_nothing_says_so(session: Session, tmp_path: Path) -> None:
    run = session.simulate(**(SMALL | {"input_len": 9000, "max_model_len": 1000, "range_ratio": 1.0}))
    run.report(tmp_path / "none.html")
    text = (tmp_path / "none.html").read_text(encoding="utf-8")
    assert "0 of 24" in text and "rejected requests: 24 rejected_too_long" in text


@pytest.mark.whole
def test_a_scenario_that_cannot_run_is_in_the_report_of_the_sweep_alone(
    session: Session, tmp_path: Path, capsys: Any
) -> None:
    found = session.what_if({**SMALL, "model": ["qwen3-0.6b", "llama-3.1-70b"]})
    found.save(tmp_path / "sweep.duckdb")
    assert main(["report", str(tmp_path / "sweep.duckdb"), "-o", str(tmp_path / "sweep.html")]) == 0
    text = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert "2 scenarios, 1 served, 1 cannot run" in text and "llama-3.1-70b does not fit on l4" in text
    (unserved,) = [row["scenario_id"] for row in found.summary.to_pylist() if row["status"] != "served"]
    for verb, ending in (("report", "html"), ("timeline", "json")):
        target = tmp_path / f"one.{ending}"
        assert main([verb, str(tmp_path / "sweep.duckdb"), "--scenario", unserved, "-o", str(target)]) == 2
        assert f"scenario {unserved} was not served: llama-3.1-70b does not fit" in capsys.readouterr().err


def test_settings_are_shown_in_units_that_people_read(run_page: Path) -> None:
    text = html.unescape(run_page.read_text(encoding="utf-8"))
    facts = text[text.index("<h2>Memory of a GPU</h2>") :].partition("</table>")[0]
    assert "GiB" in facts and "_bytes<" not in facts and "full_units" not in facts
    assert "deployment_id" not in text[text.index("<h2>Deployment</h2>") :].partition("</table>")[0]
