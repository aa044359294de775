"""HTML report of a saved kernel search: best candidate, measured and deferred candidates with reasons, calibration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.number_format import percent
from kernelsight.present.html.page import UNKNOWN, Card, Grid, Head, Tiles, figures, page, table, text_of
from kernelsight.present.html.search_figures import DEFERRED_QUERY, FORECAST_QUERY, SEARCH_FIGURES

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


def search_page(session: Session, search: str | None = None) -> str:
    """Return the page of the only search in a saved run, as HTML.

    ``search``: its id, None: any. InvalidInput: the run holds several searches, or another one.
    """
    scenarios = session.table("search_scenarios").to_pylist()
    names = [row["search_id"] for row in scenarios]
    if len(names) != 1:
        raise InvalidInput(
            f"the run holds {len(names)} kernel searches; a report shows one, as `search run -o` saves it."
        )
    if search not in (None, names[0]):
        raise InvalidInput(f"the run holds the kernel search {names[0]!r}, not {search!r}; leave out --scenario.")
    scenario, summary = scenarios[0], session.table("search_summary").to_pylist()[0]
    figure_rows = [(figure, session.query(figure.sql).to_pylist()) for figure in SEARCH_FIGURES]
    title = f"Kernel search: {scenario['space']} on {scenario['gpu']}"
    fields = {name: value for name, value in scenario.items() if value is not None}
    about = ", ".join(f"{name} {text_of(value)}" for name, value in fields.items() if name != "search_id")
    cards = {"Search": [{"setting": name, "value": text_of(value)} for name, value in fields.items()]}
    cards["Best candidate"] = _parameters(session)
    facts = Grid([Card(name, table=table(rows)) for name, rows in cards.items() if rows])
    head = Head(title, about, _sentences(session, scenario, summary))
    return page(title, [head, _tiles(summary), figures(figure_rows), facts])


def _sentences(session: Session, scenario: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Return the findings of the search as sentences, the most important first."""
    sentences = [
        f"The fastest candidate after {summary['measured']} measurements takes {text_of(summary['best_us'])} us: "
        f"{summary['best_candidate']}."
    ]
    if summary["regret"] is not None:
        sentences.append(
            f"It is {percent(summary['regret'], 1)} above the fastest that the file holds; the search was within 5 % "
            f"after {text_of(summary['n_to_5'])} and within 2 % after {text_of(summary['n_to_2'])} measurements."
        )
    last_round = session.query("select expected_better from search_rounds order by round desc limit 1").to_pylist()[0]
    if last_round["expected_better"] is not None:
        end_clause = "It stopped by itself" if summary["stopped"] else "It ended with its budget"
        sentences.append(
            f"{end_clause}; before its last round it expected {text_of(last_round['expected_better'])} further "
            "candidates to be faster than the best by 2 %."
        )
    deferred = session.query(DEFERRED_QUERY).to_pylist()
    if deferred:
        reasons = "; ".join(f"{row['candidates']:,} {row['why']}" for row in deferred)
        deferred_count = sum(row["candidates"] for row in deferred)
        sentences.append(f"{deferred_count:,} candidates were forecast and not measured: {reasons}.")
    forecasts = session.query(FORECAST_QUERY).to_pylist()
    if forecasts:
        inside = sum(row["inside"] for row in forecasts)
        sentences.append(
            f"{inside} of {len(forecasts)} measured candidates lay within the 90 % interval that was forecast for them."
        )
    if summary["failed"]:
        sentences.append(f"{summary['failed']} measurements failed.")
    if summary["notes"]:
        sentences.append(f"{summary['notes'][0].upper()}{summary['notes'][1:]}.")
    return sentences


def _tiles(summary: Mapping[str, Any]) -> Tiles:
    """Return the key figures of a search: best candidate, measurements, calibration."""
    return Tiles(
        {
            **{"best (us)": text_of(summary["best_us"]), "above the fastest": percent(summary["regret"], 1, UNKNOWN)},
            **{"measurements": text_of(summary["measured"]), "failed": text_of(summary["failed"])},
            **{"to 5 %": text_of(summary["n_to_5"]), "to 2 %": text_of(summary["n_to_2"])},
            **{
                "measuring (s)": text_of(summary["gpu_s"]),
                "90 % intervals cover": percent(summary["coverage_90"], 1, UNKNOWN),
            },
            **{"calibration error": text_of(summary["ece"]), "score P": text_of(summary["score"])},
        }
    )


def _parameters(session: Session) -> list[dict[str, Any]]:
    """Return the parameters of the best candidate as table rows."""
    rows = session.query(
        "select parameters from kernel_candidates join search_summary on candidate_id = best_candidate "
        "join search_scenarios using (search_id, space)"
    ).to_pylist()
    return [{"parameter": name, "value": str(value)} for name, value in json.loads(rows[0]["parameters"]).items()]
