"""Proposes variants of the fastest measured candidates: by mutation and crossover, or written by a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from kernelsight.files.numbers import is_number
from kernelsight.files.own import own_json
from kernelsight.searching.decisions import generator
from kernelsight.searching.growth import Candidate
from kernelsight.searching.history import History, weighted_means
from kernelsight.searching.llm.forecaster import WRITING, AnswerCache, Settings, answer_all, answers_to
from kernelsight.searching.llm.prompt import writing_messages
from kernelsight.searching.proposals import parents
from kernelsight.searching.proposers import Source, values_of
from kernelsight.searching.source_edits import crossed, mutated
from kernelsight.searching.space_files import identity

# names of --propose
EVOLUTION, MODEL = "evolution", "llm"
DRAW = 6
# chance that a child mixes two parents, in parameters and in text; and that it changes a parameter where it has a text
CROSSOVER, PARAMETER = 0.5, 0.5
# draws until the parameters of a child without a text of its own are a configuration of the space
ATTEMPTS = 8
# measured candidates that a language model sees beside the one that it rewrites
SHOWN = 4


def from_evolution(candidates: list[Candidate], scenario: Mapping[str, Any], text: str | None) -> Source:
    """Return a source of mutated and crossed candidates; ``text``: the source of those without one, where known.

    A child is a function of the measurements alone, so that a resumed search proposes the same.
    """
    values = values_of(candidates)
    known = {row["candidate_id"] for row in candidates}

    def source(number: int, history: History, wanted: int) -> list[dict[str, Any]]:
        draw = generator(scenario, number, DRAW)
        chosen = chosen_parents(history, candidates)
        if not chosen:
            rows = draw.choice(len(candidates), min(wanted, len(candidates)), replace=False)
            return [{"candidate_id": candidates[row]["candidate_id"]} for row in rows]
        pairs = [(chosen[k % len(chosen)], chosen[(k + 1) % len(chosen)]) for k in range(wanted)]
        return [_child(one, other, values, known, text, draw) for one, other in pairs]

    return source


def chosen_parents(history: History, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates to derive others from: fast ones, and ones from which few were derived."""
    row_of = {row["candidate_id"]: number for number, row in enumerate(candidates)}
    born = [row_of[row["parent_id"]] for row in candidates if row.get("parent_id") in row_of]
    return [candidates[row] for row in parents(history, np.bincount(born, minlength=len(candidates)))]


def _child(
    one: Candidate,
    other: Candidate,
    values: Mapping[str, list[Any]],
    known: set[str],
    text: str | None,
    draw: np.random.Generator,
) -> dict[str, Any]:
    texts = [row.get("source_text") or text for row in (one, other)]
    child = _text_of(texts, draw) if texts[0] else None
    parameters = one["parameters"]
    if child is None or draw.random() < PARAMETER:
        for _ in range(ATTEMPTS):
            parameters = _parameters_of(one["parameters"], other["parameters"], values, draw)
            if identity(parameters) in known:
                break
    child = child or one.get("source_text")  # a text of its own goes with its parameters
    made = {"parameters": parameters, "parent_id": one["candidate_id"], "proposer": EVOLUTION}
    return made | ({"source_text": child} if child else {})


def _text_of(texts: Sequence[str | None], draw: np.random.Generator) -> str | None:
    """Return a new text from one or two, or None: the child differs by its parameters alone."""
    first, second = texts
    mixed = crossed(first, second, draw) if first and second and draw.random() < CROSSOVER else None
    return mixed or mutated(first or "", draw)


def _parameters_of(
    one: Mapping[str, Any], other: Mapping[str, Any], values: Mapping[str, list[Any]], draw: np.random.Generator
) -> dict[str, Any]:
    """Return parameters of one parent or of either, one of them moved to a neighbouring value."""
    mixes = draw.random() < CROSSOVER
    child = {name: other[name] if mixes and draw.random() < 0.5 else value for name, value in one.items()}
    free = [name for name in values if len(values[name]) > 1]
    if free:
        name = free[int(draw.integers(len(free)))]
        place = values[name].index(child[name]) + (1 if draw.random() < 0.5 else -1)
        child[name] = values[name][min(max(place, 0), len(values[name]) - 1)]
    return child


def from_model(
    candidates: list[Candidate],
    settings: Settings,
    gpu: Mapping[str, Any],
    text: str,
    open_answers: Callable[[], AbstractContextManager[AnswerCache]],
) -> Source:
    """Return a source of candidates that a language model rewrites; ``text``: of those without a source of their own.

    ``gpu``: its row of ``gpus``; ``open_answers``: opens the known ones, which new ones extend. An answer without a
    source is none.
    """

    def source(number: int, history: History, wanted: int) -> list[dict[str, Any]]:
        chosen = chosen_parents(history, candidates)
        if not chosen:
            return [{"candidate_id": row["candidate_id"]} for row in candidates[:wanted]]
        rows, logs, _ = weighted_means(history)
        order = np.argsort(logs)[:SHOWN]
        fastest = [candidates[rows[k]] | {"latency_us": float(np.exp(logs[k]))} for k in order]
        time_of = dict(zip(rows.tolist(), np.exp(logs).tolist(), strict=True))
        row_of = {row["candidate_id"]: place for place, row in enumerate(candidates)}
        each = settings._replace(samples=max(1, wanted // len(chosen)))
        questions = {
            parent["candidate_id"]: writing_messages(
                gpu,
                {**parent, "source_text": parent.get("source_text") or text},
                time_of[row_of[parent["candidate_id"]]],
                fastest,
            )
            for parent in chosen
        }
        with open_answers() as answers:
            answer_all(each, questions, answers, WRITING)
            made = [
                (name, own_json(answer["text"]))
                for name, chat in questions.items()
                for answer in answers_to(each, chat, answers)
                if answer.get("text")
            ]
        return [_written(candidates[row_of[name]], fields) for name, fields in made][:wanted]

    return source


def _written(parent: Candidate, fields: Mapping[str, Any]) -> dict[str, Any]:
    changed = fields.get("parameters")
    parameters = parent["parameters"] | {
        name: value
        for name, value in (changed.items() if isinstance(changed, dict) else ())
        if name in parent["parameters"] and (is_number(value) or isinstance(value, bool | str))
    }
    words = {"source_text": fields["source_text"], "parent_id": parent["candidate_id"], "proposer": MODEL}
    return {"parameters": parameters} | words
