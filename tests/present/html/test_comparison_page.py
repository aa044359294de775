"""The report of a saved comparison: the verdict, every figure with its rows, and nothing on the console."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from kernelsight.cli.main import main
from kernelsight.present.figures.files import figures_of
from kernelsight.session import connect
from tests.present.conftest import SMALL
from tests.present.html.browser import needs_browser, open_in_browser, without_scripts

pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
LOG_QUERY = """
select sent_ns / 1e9 as arrival_s, e.prompt_tokens, e.output_tokens, ttft_ms, 1.2 * e2e_ms as e2e_ms,
  'client_send' as ttft_clock
from request_events e join request_metrics using (scenario_id, request_id)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The page of a log whose answers take a fifth longer, and the verdict on it."""
    folder = tmp_path_factory.mktemp("comparison")
    flags = {name: SMALL[name] for name in ("model", "gpu")}
    with connect() as session:
        run = session.simulate(**SMALL | {"num_prompts": 60})
        found = session.compare(requests=run.sql(LOG_QUERY).to_arrow_table(), deployment=flags, suspects="none")
        found.save(folder / "log.duckdb")
        verdict = found.summary["verdict"]
    assert main(["report", str(folder / "log.duckdb"), "-o", str(folder / "log.html")]) == 0
    return folder / "log.html", verdict


@pytest.mark.whole
def test_the_verdict_stands_first_and_every_figure_is_there(page: tuple[Path, str]) -> None:
    text = without_scripts(page[0].read_text())
    first = text.index('"card verdict"')
    assert html.escape(page[1][1:]) in text[first : first + 1500]
    heads = [f"<h2>{html.escape(figure.title)}</h2>" for figure in figures_of("comparison").values()]
    places = [text.index(head) for head in heads if head in text]
    # a card without rows is not drawn: of so short a log no cause was looked for
    missing = [
        figure.title for figure, head in zip(figures_of("comparison").values(), heads, strict=True) if head not in text
    ]
    assert missing == ["Settings that may differ", "Corrections"] and "no cause was looked for" in page[1]
    assert places == sorted(places)
    assert "60 requests compared with their replay" in text


def test_a_comparison_has_no_scenarios(page: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["report", str(page[0].with_name("log.duckdb")), "-o", str(tmp_path / "x.html"), "--scenario", "a"]
    assert main(words) == 2
    assert "holds a comparison with a log, and no scenarios; remove --scenario." in capsys.readouterr().err


@needs_browser
def test_it_draws_without_a_word_on_the_console(page: tuple[Path, str], tmp_path: Path) -> None:
    elements, said = open_in_browser(page[0], tmp_path)
    assert said == []
    figures = figures_of("comparison").values()
    assert elements.count('class="marks"') == sum(figure.spec is not None for figure in figures)
