"""Forecasts candidates by a language model behind an OpenAI-compatible server.

Each candidate is compared with a measured anchor; the answer is a distribution over eight bins of its speed-up. Answers
are averaged over samples and cached by the hash of model and prompt. A candidate without a valid answer has no
forecast, and the failures are counted. The source of kernels is never executed here.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import durable_file, locked
from kernelsight.caches.journal import Journal, journal_path, read_journal
from kernelsight.catalog.tables import contracts
from kernelsight.errors import InvalidInput
from kernelsight.files.own import own_json
from kernelsight.searching.llm.answers import (
    LOG_EDGES,
    isotonic,
    log_quantile,
    log_spread,
    read_answer,
    read_source,
    share_below,
)
from kernelsight.searching.llm.client import RECORDED, UNKNOWN_FIELD, Reply, Server, ask
from kernelsight.searching.llm.prompt import messages, prompt_hash, tool, writing_tool
from kernelsight.searching.targets import Forecaster

KIND = "cache of answers"
Key = tuple[str, int]


class AnswerCache(dict[Key, dict[str, Any]]):
    """Rows of ``llm_answers`` by prompt hash and sample; a new one is appended to the journal, where there is one."""

    journal: Journal | None = None

    def __setitem__(self, key: Key, row: dict[str, Any]) -> None:
        if self.journal is not None:
            self.journal.append(row)
        super().__setitem__(key, row)


@contextmanager
def answer_cache(file: Path | None, read: Callable[[Path], pa.Table]) -> Iterator[AnswerCache]:
    """Yield the cached answers of a Parquet file and of a killed run's journal; at the end, write all to the file.

    ``read`` returns the rows of the file. Without a file nothing is written. InvalidInput: another process writes it.
    """
    cache = AnswerCache()
    if file is None:
        yield cache
        return
    with locked(file):
        path = journal_path(file)
        rows = read(file).to_pylist() if file.exists() else []
        earlier = read_journal(path, KIND).records if path.exists() else []
        cache.update({(row["prompt_hash"], row["sample"]): row for row in [*rows, *earlier]})
        cache.journal = Journal(path, KIND, file.name, earlier)
        try:
            yield cache
        finally:
            cache.journal.close()
            with durable_file(file) as draft:
                pq.write_table(answer_table(cache), draft)
            path.unlink()


MOST_TOKENS = 8192
# permanent failures, of which a cached answer is not requested again
LASTING = ("no_answer", "truncated", "missing_field", "invalid_probability")
# share by which a candidate must be faster than the best so far
LEAD = 0.02
# least measured candidates with a forecast by which confidence and width are calibrated
LEAST_CALIBRATED = 10
SHARES = {"p05_us": 0.95, "p50_us": 0.5, "p95_us": 0.05}


class Settings(NamedTuple):
    """Settings of requests.

    ``samples``: answers per candidate; ``neighbours``: measured candidates that are shown beside the anchor;
    ``parallel``: concurrent requests; ``again``: repeat requests whose cached answer is a transient failure.
    """

    server: Server
    samples: int = 1
    neighbours: int = 4
    parallel: int = 4
    again: bool = True


def llm_forecaster(
    settings: Settings, gpu: Mapping[str, Any], known_answers: dict[tuple[str, int], dict]
) -> Forecaster:
    """Return a forecaster, from ``kernel_candidates``, ``kernel_measurements`` and a scenario to ``kernel_forecasts``.

    ``gpu``: the row of ``gpus``, or its name alone; ``known_answers``: by prompt hash and sample; new ones are added.
    """

    def forecast(candidates: pa.Table, measurements: pa.Table, scenario: Mapping[str, Any]) -> pa.Table:
        rows = {row["candidate_id"]: row for row in candidates.to_pylist()}
        gpu_name = _measured_gpu(scenario)
        times = measured_times(measurements, gpu_name, rows)
        anchor = anchor_of(times, scenario)
        measured = [{**rows[name], "latency_us": time, "on": gpu_name} for name, time in times.items()]
        anchor_row = {**rows[anchor], "latency_us": times[anchor], "on": gpu_name}
        questions = {
            name: messages(gpu, anchor_row, row, nearest(row, measured, settings.neighbours, (name, anchor)))
            for name, row in rows.items()
        }
        answer_all(settings, questions, known_answers)
        answer_lists = {name: answers_to(settings, chat, known_answers) for name, chat in questions.items()}
        return forecast_rows(answer_lists, times, anchor, scenario)

    return forecast


def measured_times(measurements: pa.Table, gpu: str, candidates: Mapping[str, Any]) -> dict[str, float]:
    """Return the median latency in us on the GPU of each candidate that worked, in the order of ``candidates``."""
    times_us: dict[str, list[float]] = {}
    for row in measurements.select(["gpu", "candidate_id", "status", "latency_us"]).to_pylist():
        if row["gpu"] == gpu and row["status"] == "ok" and row["candidate_id"] in candidates:
            times_us.setdefault(row["candidate_id"], []).append(row["latency_us"])
    return {name: float(np.median(times_us[name])) for name in candidates if name in times_us}


def anchor_of(times: Mapping[str, float], scenario: Mapping[str, Any]) -> str:
    """Return the candidate that speed-ups are relative to: the scenario's anchor, else that of median latency.

    InvalidInput: the anchor, or any candidate, has no measurement on the GPU.
    """
    anchor = scenario.get("anchor")
    if anchor is not None and anchor not in times:
        raise InvalidInput(
            f"the anchor {anchor!r} has no working measurement on {_measured_gpu(scenario)}; give its measurement, or "
            "another."
        )
    if not times:
        raise InvalidInput(
            f"no candidate has a working measurement on {_measured_gpu(scenario)}; a language model forecasts "
            "speed-ups over a measured one, so measure one first and give it with --measurements."
        )
    ordered = sorted(times, key=lambda name: (times[name], name))
    return anchor if anchor is not None else ordered[(len(ordered) - 1) // 2]


def _measured_gpu(scenario: Mapping[str, Any]) -> str:
    """Return the GPU that the anchor was measured on."""
    return scenario.get("measured_on") or scenario["gpu"]


def nearest(row: Mapping[str, Any], measured: Sequence[Mapping], count: int, excluded: Sequence[str]) -> list[Mapping]:
    """Return up to ``count`` measured candidates with the fewest parameters that differ from a candidate's."""
    parameters = _parameters(row)

    def differences(candidate: Mapping[str, Any]) -> tuple[int, str]:
        others = _parameters(candidate)
        different = sum(parameters.get(name) != others.get(name) for name in {*parameters, *others})
        return different, candidate["candidate_id"]

    return sorted((other for other in measured if other["candidate_id"] not in excluded), key=differences)[:count]


def _parameters(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return own_json(row["parameters"]) if isinstance(row["parameters"], str) else row["parameters"]


class Form(NamedTuple):
    """The form of an answer: the tool that the model must call, and what a body is read as, rows of ``llm_answers``."""

    tool: Mapping[str, Any]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]


def _as_forecast(body: Mapping[str, Any]) -> dict[str, Any]:
    answer = read_answer(body)
    mass = None if answer.probabilities is None else answer.probabilities.tolist()
    return {"probabilities": mass, "raw_probability_sum": answer.raw_sum, "failure": answer.failure}


def _as_source(body: Mapping[str, Any]) -> dict[str, Any]:
    fields, failure = read_source(body)
    return {"text": None if fields is None else json.dumps(fields), "failure": failure}


FORECAST, WRITING = Form(tool(), _as_forecast), Form(writing_tool(), _as_source)


def answer_all(
    settings: Settings,
    questions: Mapping[str, Sequence],
    known_answers: dict[tuple[str, int], dict],
    form: Form = FORECAST,
) -> None:
    """Request all answers that are not known yet, concurrently, and add them to ``known_answers``.

    InvalidInput: the answers are RECORDED, and some are missing.
    """
    server = settings.server
    missing: dict[tuple[str, int], tuple[str, Sequence]] = {}
    for name, chat in questions.items():
        for sample in range(1, settings.samples + 1):
            key = (prompt_hash(server.model, chat), sample)
            is_transient = (
                key in known_answers and known_answers[key]["failure"] and known_answers[key]["failure"] not in LASTING
            )
            if key not in known_answers or (is_transient and settings.again and server.url != RECORDED):
                missing.setdefault(key, (name, chat))
    if missing and server.url == RECORDED:
        raise InvalidInput(
            f"--llm-url {RECORDED}: {len(missing):,} of {len(questions) * settings.samples:,} answers of "
            f"{server.model} are not in --llm-cache; ask a server for them once, with the same file."
        )
    with ThreadPoolExecutor(max(1, settings.parallel)) as pool:
        jobs = {pool.submit(_ask_once, server, chat, key[1], form): key for key, (_, chat) in missing.items()}
        try:
            for job in as_completed(jobs):
                key = jobs[job]
                row = {"prompt_hash": key[0], "sample": key[1], "model": server.model}
                known_answers[key] = {**row, "candidate_id": missing[key][0], **job.result()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _ask_once(server: Server, chat: Sequence[Mapping[str, str]], sample: int, form: Form) -> dict[str, Any]:
    """Request one answer with a forced tool call, or in plain text where the server does not support tools."""
    request = {"messages": list(chat), "max_tokens": MOST_TOKENS, "seed": sample}
    name = form.tool["function"]["name"]
    forced = {"tools": [form.tool], "tool_choice": {"type": "function", "function": {"name": name}}}
    reply = ask(server, {**request, **forced})
    spent_s = reply.elapsed_s
    if reply.body is None and reply.status in UNKNOWN_FIELD:
        reply = ask(server, request)
        spent_s += reply.elapsed_s
    return {**_answer_row(reply, form), "elapsed_s": spent_s}


def _answer_row(reply: Reply, form: Form) -> dict[str, Any]:
    body = reply.body or {}
    usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    tokens = {
        name: usage.get(field) for name, field in (("tokens_in", "prompt_tokens"), ("tokens_out", "completion_tokens"))
    }
    tokens = {name: value if isinstance(value, int) else None for name, value in tokens.items()}
    nothing = dict.fromkeys(("probabilities", "raw_probability_sum", "text"))
    read = {"failure": reply.failure} if reply.body is None else form.read(body)
    return {**nothing, **read, **tokens}


def answers_to(
    settings: Settings, chat: Sequence[Mapping[str, str]], known_answers: Mapping[tuple[str, int], dict]
) -> list[dict]:
    """Return the answers to a chat, one per sample."""
    key = prompt_hash(settings.server.model, chat)
    return [known_answers[key, sample] for sample in range(1, settings.samples + 1)]


def answer_table(known_answers: Mapping[tuple[str, int], dict]) -> pa.Table:
    """Return answers as rows of ``llm_answers``, ordered by their key."""
    return pa.Table.from_pylist(
        [known_answers[key] for key in sorted(known_answers)], contracts()["llm_answers"].schema
    )


def failures(known_answers: Mapping[tuple[str, int], dict]) -> list[dict[str, Any]]:
    """Return the number of failed answers by reason."""
    counts = Counter(row["failure"] for row in known_answers.values() if row["failure"])
    return [{"reason": reason, "answers": count} for reason, count in sorted(counts.items())]


def forecast_rows(
    answers: Mapping[str, Sequence[Mapping]], times: Mapping[str, float], anchor: str, scenario: Mapping[str, Any]
) -> pa.Table:
    """Return ``kernel_forecasts`` of the candidates with a valid answer, calibrated by the measured ones."""
    bins = {
        name: np.mean([sample["probabilities"] for sample in samples if sample["probabilities"]], axis=0)
        for name, samples in answers.items()
        if any(sample["probabilities"] for sample in samples)
    }
    best = math.log(min(times.values()))
    start = math.log(times[anchor])
    width, trust = _calibration(bins, times, start)
    rows = []
    for name, mass in bins.items():
        median = start - log_quantile(mass, 0.5)
        quantiles = {
            column: math.exp(median + width * (start - log_quantile(mass, quantile) - median))
            for column, quantile in SHARES.items()
        }
        log_to_beat = median + (best + math.log1p(-LEAD) - median) / width
        rows.append(
            {
                "search_id": scenario["search_id"],
                "round": scenario.get("round", 1),
                "candidate_id": name,
                "forecaster": "llm",
                "latency_us": math.exp(median),
                **quantiles,
                "log_sd": width * log_spread(mass),
                "p_ok": 1.0,
                "p_faster": 1.0 - share_below(mass, start - log_to_beat),
                "confidence": float(np.interp(mass.max(), *trust)) if trust else float(mass.max()),
                **{f"bin_{number}": float(probability) for number, probability in enumerate(mass, start=1)},
                "evidence": "llm",
                "measured_n": len(times),
                "raw_probability_sum": _mean(answers[name], "raw_probability_sum"),
                "tokens_in": _total(answers[name], "tokens_in"),
                "tokens_out": _total(answers[name], "tokens_out"),
                "elapsed_s": sum(sample["elapsed_s"] for sample in answers[name]),
            }
        )
    return pa.Table.from_pylist(rows, contracts()["kernel_forecasts"].schema)


def _calibration(
    bins: Mapping[str, np.ndarray], times: Mapping[str, float], start: float
) -> tuple[float, tuple[np.ndarray, np.ndarray] | None]:
    """Return the factor on the intervals' widths, and the calibrated confidence as (confidence, share right)."""
    measured_names = [name for name in bins if name in times]
    if len(measured_names) < LEAST_CALIBRATED:
        return 1.0, None
    truth = np.array([start - math.log(times[name]) for name in measured_names])
    middle = np.array([log_quantile(bins[name], 0.5) for name in measured_names])
    half = np.array(
        [0.5 * (log_quantile(bins[name], 0.95) - log_quantile(bins[name], 0.05)) for name in measured_names]
    )
    # the order statistic that covers 90 % of one more (split conformal: Vovk et al. 2005)
    rank = min(len(measured_names), math.ceil(0.9 * (len(measured_names) + 1))) - 1
    width = float(np.sort(np.abs(truth - middle) / half)[rank])
    right = [bins[name].argmax() == _bin_of(value) for name, value in zip(measured_names, truth, strict=True)]
    return max(width, 1e-3), isotonic(np.array([bins[name].max() for name in measured_names]), np.array(right))


def _bin_of(log_speed_up: float) -> int:
    return int(np.searchsorted(LOG_EDGES[1:-1], log_speed_up, side="right"))


def _mean(answers: Sequence[Mapping], name: str) -> float | None:
    values = [sample[name] for sample in answers if sample[name] is not None]
    return float(np.mean(values)) if values else None


def _total(answers: Sequence[Mapping], name: str) -> int | None:
    values = [sample[name] for sample in answers if sample[name] is not None]
    return sum(values) if values else None
