"""One log compared with its replay: the miss of every request, its causes, and corrections that hold for later time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.by_request import by_request
from kernelsight.comparison.cause_names import named_causes
from kernelsight.comparison.cause_sizes import State
from kernelsight.comparison.causes import explain
from kernelsight.comparison.errors import (
    METRICS,
    bucket_rows,
    cached_of,
    drift_rows,
    errors_of,
    measured_by_metric,
    predicted_of,
)
from kernelsight.comparison.factors import (
    PARAMETERS,
    Estimate,
    estimate,
    prior_covariance,
    relative_residuals,
    variant_of,
)
from kernelsight.comparison.likelihood import Witnesses
from kernelsight.comparison.measured_requests import (
    LEAST_REQUESTS,
    LEAST_SECONDS,
    Measured,
    check_replicas,
    measured_of,
)
from kernelsight.comparison.miss_parts import PARTS, Misses, misses_of
from kernelsight.comparison.observed_steps import Seen, seen_of, typical_context
from kernelsight.comparison.replay import (
    KEPT,
    KERNELS,
    NO_LOAD,
    Replayed,
    Variant,
    given,
    interval_factors,
    load_of_log,
    replay,
)
from kernelsight.comparison.residuals import NOTHING, left_by_group, similar
from kernelsight.comparison.sample import Sample, drawn_e2e, in_turn, kernel_spread
from kernelsight.comparison.settings import contradictions, stated_settings, with_stated
from kernelsight.comparison.unused_rows import counted, rejected
from kernelsight.comparison.verdict import not_separated, verdict_of, verdict_table
from kernelsight.dataflow.rows import as_table
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput
from kernelsight.escape import visible
from kernelsight.scenario.alternatives import alternatives
from kernelsight.scenario.corrections import fingerprint

WINDOWS = "metrics of the server are held against max_num_seqs alone; table production_windows has them"
# requests that causes are looked for in: enough to tell them apart, in a second or two
MOST_EXPLAINED = 4000
TABLES = (
    *("prediction_vs_production", "miss_by_part", "error_by_bucket", "drift_over_time", "setting_suspects"),
    *("fitted_corrections", "comparison_findings"),
)


class Question(NamedTuple):
    """What a log is compared with: flags of the deployment, and how far to look for causes.

    ``fit``: none, host (host time and front end alone) or parts; ``hold_out``: the last share of the time, on which
    corrections are scored; ``suspects``: all, or none; ``stated``: flags of the load as it was described.
    """

    flags: Mapping[str, Any]
    stated: Mapping[str, Any] | None = None
    fit: str = "parts"
    hold_out: float = 0.3
    suspects: str = "all"


class Comparison:
    """A production log and its replay.

    >>> import kernelsight as ks
    >>> rows = [{"arrival_s": i / 4, "prompt_tokens": 64 + i, "output_tokens": 9, "e2e_ms": 40.0} for i in range(120)]
    >>> found = ks.compare(requests=rows, deployment={"model": "qwen3-0.6b", "gpu": "l4"})
    >>> found.summary["requests"], found.table("prediction_vs_production").num_rows
    (120, 120)
    """

    def __init__(self, session: Session, tables: Mapping[str, pa.Table], question: Question) -> None:
        self._session, self._logs, self._question = session, dict(tables), question
        self._requests = in_turn(self._logs["production_requests"], self._logs["production_logs"])
        if not self._requests.num_rows:
            raise InvalidInput("the log holds no requests with a prompt length; log_faults says why rows were dropped.")
        self.measured: Measured = measured_of(self._requests)
        self.settings: dict[str, Any] = stated_settings(session, question.flags, NO_LOAD)
        self._logs["production_settings"] = with_stated(
            self._logs["production_settings"], self.settings, question.flags
        )
        check_replicas(self._requests, self.settings)
        self.load: pa.Table = load_of_log(self._requests, self.settings["block_size"])

    @property
    def enough(self) -> bool:
        """Whether there are requests and time enough to look for causes."""
        sent = self.measured.sent_s[self.measured.ok]
        return sent.size >= LEAST_REQUESTS and float(np.ptp(sent)) >= LEAST_SECONDS

    @property
    def base(self) -> Replayed:
        """The replay of the log on the deployment as stated, without parts."""
        return self._stated[0]

    @cached_property
    def _stated(self) -> tuple[Replayed, dict[str, float]]:
        """The replay of the log as stated, and mean milliseconds of each part of the requests that can be compared."""
        (served,) = replay(self._session, self.load, [Variant(self._question.flags)])
        own = self.measured.ok & served.served & np.isfinite(self.measured.e2e_ms)
        means = {name: float(served.part(name)[own].mean() / 1e6) if own.any() else 0.0 for name in KEPT}
        return served.only(()), means

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """How far below and above the prediction each metric may be measured (90 %), before the log was seen."""
        return interval_factors(self._session, self.load, Variant(self._question.flags))

    @cached_property
    def rests_on(self) -> dict[str, str | None]:
        """What the prediction rests on: its tier, and what was not measured."""
        with self._session.fork() as fork:
            given(fork, self.load, [Variant(self._question.flags)])
            (row,) = fork.table("deployment_tiers").to_pylist()[:1]
        return {"tier": row["tier"], "not_measured": row["not_measured"]}

    @cached_property
    def prior(self) -> np.ndarray:
        """Covariance of PARAMETERS before the log was seen: the intervals of the deployment's own kernels."""
        return prior_covariance(kernel_spread(self._session, self._question.flags, self.measured))

    @cached_property
    def fitted_on(self) -> np.ndarray:
        """The requests of the first part of the time, on which causes and corrections are fitted."""
        sent = self.measured.sent_s
        last = sent.min() + (1.0 - self._question.hold_out) * np.ptp(sent)
        return self.measured.ok & (sent <= last)

    @cached_property
    def explained(self) -> tuple[State, list[tuple[str, float]]]:
        """The causes that were found, replayed on the whole log, and the loss of each setting alone."""
        flags, nothing = self._question.flags, np.zeros(len(PARAMETERS))
        if not self.enough or self._question.fit == "none":
            return State(flags, nothing, (), self.base, NOTHING), []
        rows = self._sample
        part = Sample(self._session, self.load, self.measured, rows)
        settings = alternatives(self.settings, flags) if self._question.suspects == "all" else []
        base = part.serve([Variant(flags)])[0]
        chosen = self.fitted_on[rows]
        testify = self.witnesses.of if self.witnesses else None
        found, ranked = explain(part.serve, flags, base, part.measured, chosen, self._allowed, settings, testify)
        if found.causes:
            own = [name for name, value in zip(PARAMETERS, found.values, strict=True) if value and name in KEPT]
            variants = [variant_of(found.flags, found.values)]
            (whole,) = replay(self._session, self.load, variants, with_parts=bool(own))
            found = found._replace(replayed=whole.only(own))
        else:
            found = found._replace(replayed=self.base)
        return found, ranked

    @cached_property
    def fitted(self) -> Estimate | None:
        """All factors at once, fitted on the first part of the time; None where there is too little to fit."""
        if not self.enough or self._question.fit == "none":
            return None
        rows, found = self._sample, self.explained[0]
        part = Sample(self._session, self.load, self.measured, rows)
        flags = [found.flags]
        own = self.witnesses.of(flags) if self.witnesses else ()
        chosen = self.fitted_on[rows]
        return estimate(part.serve, flags, part.measured, chosen, self._allowed, iterations=4, witnesses=own)[0]

    @cached_property
    def seen(self) -> Seen:
        """Engine steps and kernels of the part of the time that is fitted on."""
        measured, share = self.measured, 1.0 - self._question.hold_out
        context = typical_context(measured)
        return seen_of(self._logs, self.settings, share * float(np.ptp(measured.sent_s)), share, context)

    @cached_property
    def witnesses(self) -> Witnesses | None:
        """What engine steps and kernels of the log say of deployments; None where it has none that are used."""
        return Witnesses(self._session, self.seen, self._allowed) if self.seen.shapes else None

    @property
    def _allowed(self) -> np.ndarray:
        """The prior; with ``fit`` host, kernels are held."""
        if self._question.fit != "host":
            return self.prior
        held = self.prior.copy()
        kernels = slice(0, len(KERNELS))
        held[kernels, kernels] = np.eye(len(KERNELS)) * 1e-12
        return held

    @cached_property
    def _sample(self) -> np.ndarray:
        """Consecutive requests in the middle of what is fitted on, few enough to be replayed many times."""
        last = int(self.fitted_on.nonzero()[0].max(initial=0)) + 1
        first = max((last - MOST_EXPLAINED) // 2, 0)
        return np.arange(first, min(first + MOST_EXPLAINED, last))

    @cached_property
    def misses(self) -> Misses:
        """The miss of each compared request, in parts."""
        stated = self._question.stated
        drawn = drawn_e2e(self._session, {**self._question.flags, **stated}, self.base) if stated else None
        return misses_of(self.measured, self.base, self.explained[0], drawn)

    @cached_property
    def scores(self) -> dict[str, Any]:
        """How corrections do on later time: uncorrected, one factor a metric, and corrected; empty without a fit."""
        if self.fitted is None:
            return {}
        found, output = self.explained[0], self.measured.output_tokens
        later = self.measured.ok & ~self.fitted_on
        real = measured_by_metric(self.measured)
        ours = predicted_of(self.base, output)
        best = self._better
        served = found.replayed
        if best is not found.values:  # a million requests take seconds to replay again
            (served,) = replay(self._session, self.load, [variant_of(found.flags, best)], with_parts=False)
        corrected = predicted_of(served, output)
        answer: dict[str, Any] = {"held_out": int(later.sum())}
        for name in ("uncorrected", "one_factor", "corrected"):
            answer[name] = {}
            for metric in METRICS:
                known = np.where(self.fitted_on, real[metric] / ours[metric], np.nan)
                factor = float(np.nanmedian(known)) if np.isfinite(known).any() else 1.0
                values = {"uncorrected": ours, "corrected": corrected}.get(name, {})
                predicted = values.get(metric, ours[metric] * factor)
                score = errors_of(np.where(later, real[metric], np.nan), predicted)
                answer[name][metric] = {key: score[key] for key in ("median_ape", "bias")}
        return answer

    @cached_property
    def _better(self) -> np.ndarray:
        """Values of PARAMETERS: those of the causes alone unless all factors at once fit the first part better."""
        found = self.explained[0]
        part = Sample(self._session, self.load, self.measured, self._sample)
        own = part.serve([variant_of(found.flags, found.values)])[0]
        real, chosen = measured_by_metric(part.measured), self.fitted_on[self._sample]

        def error(replayed: Replayed) -> float:
            ours = predicted_of(replayed, part.measured.output_tokens)
            scores = [errors_of(np.where(chosen, real[name], np.nan), ours[name])["median_ape"] for name in METRICS]
            return sum(score for score in scores if score is not None)

        return found.values if error(own) <= 1.05 * error(self.fitted.replayed) else self.fitted.values

    @property
    def is_better(self) -> bool:
        """Whether corrections beat one factor a metric on later time, summed over the metrics."""
        if not self.scores:
            return False

        def total(name: str) -> float:
            found = [self.scores[name][metric]["median_ape"] for metric in METRICS]
            return sum(value for value in found if value is not None)

        return total("corrected") < min(total("one_factor"), total("uncorrected"))

    @cached_property
    def suspects(self) -> list[dict[str, Any]]:
        """Rows of ``setting_suspects``: contradictions first, then settings by how much they explain."""
        found, ranked = self.explained
        rows = contradictions(self._session, self.settings, self._logs) if self._question.suspects == "all" else []
        before = self._loss_before
        for name, loss in ranked:
            setting, _, value = name.partition("=")
            gain = 1.0 - loss / before if before else 0.0
            likely = name in found.causes
            if likely or gain > 0.1:
                stated = self.settings.get({"tensor_parallel_size": "tp"}.get(setting, setting))
                row = {"setting": setting, "stated": None if stated is None else str(stated), "value": value}
                rows.append({**row, "gain": gain, "evidence": "likely" if likely else "undecided"})
        return sorted(rows, key=lambda row: ("impossible", "likely", "undecided").index(row["evidence"]))

    @cached_property
    def _loss_before(self) -> float:
        part = Sample(self._session, self.load, self.measured, self._sample)
        chosen = self.fitted_on[self._sample]
        residuals = relative_residuals(part.measured, part.serve([Variant(self._question.flags)])[0])
        return left_by_group(residuals[:, chosen], similar(part.measured, chosen)).loss

    @cached_property
    def parts(self) -> list[dict[str, Any]]:
        """Rows of ``miss_by_part``, the largest first; they add up to the mean miss."""
        found, misses, fitted = self.explained[0], self.misses, self.fitted
        total, n = int(misses.miss_ns.sum()), max(misses.rows.size, 1)
        rows = []
        for name in PARTS:
            own = int(misses.parts[name].sum())
            row: dict[str, Any] = {"part": name, "miss_ms": own / n / 1e6, "share": own / total if total else 0.0}
            row |= dict.fromkeys(("predicted_ms", "factor", "factor_p05", "factor_p95", "posterior_ratio"))
            at = PARAMETERS.index(name) if name in PARAMETERS else None
            if name in KEPT:
                row["predicted_ms"] = self._stated[1][name]
            if at is not None and fitted is not None:
                row["posterior_ratio"] = float(fitted.sd[at] / fitted.prior_sd[at])
                if name in KERNELS:
                    value = found.values[at]
                    spread = 1.645 * fitted.sd[at]
                    row["factor"] = float(np.exp(value))
                    row |= {"factor_p05": float(np.exp(value - spread)), "factor_p95": float(np.exp(value + spread))}
            rows.append(row)
        return sorted(rows, key=lambda row: -abs(row["miss_ms"]))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The comparison as ``kernelsight compare --format json`` prints it."""
        real, ours = measured_by_metric(self.measured), predicted_of(self.base, self.measured.output_tokens)
        found = self.explained[0]
        dropped = counted(self._logs["log_faults"].to_pylist())
        refused = self.measured.ok & ~self.base.served
        if refused.any():
            longest = (self.measured.prompt_tokens + self.measured.output_tokens)[refused].max()
            dropped.append(rejected(int(refused.sum()), int(longest), self.settings["max_model_len"]))
        answer: dict[str, Any] = {
            "requests": int(self.measured.ok.sum()),
            "dropped": dropped,
            "files": self._logs["production_files"].to_pylist(),
            **{f"{name}_ms": errors_of(real[name], ours[name], self.intervals.get(name)) for name in METRICS},
            "cached_tokens": cached_of(self.measured, self.base),
            "parts": self.parts,
            "suspects": self.suspects,
            "fit": self.scores,
            "drift": [row for row in drift_rows(self.measured, ours) if row["change"]],
        }
        answer["causes"] = named_causes(found, self.measured.from_server, self.parts, answer["e2e_ms"]["measured"])
        answer |= self.rests_on
        seen = self.seen if self.fitted is not None else None
        answer["evidence"] = {"steps": seen.steps, "kernels": seen.kernels} if seen else {}
        unused = [*seen.unused] if seen else []
        if self._logs["production_windows"].num_rows:
            unused.append(WINDOWS)
        if seen or unused:
            answer["evidence"]["not_used"] = unused
        answer["not_separated"] = not_separated(self.parts, answer["e2e_ms"]["predicted"], answer["evidence"])
        return answer | {"verdict": verdict_of(answer, self.enough, self._question.fit)}

    def table(self, name: str) -> pa.Table:
        """Return a table of the comparison, or of the log; InvalidInput for another name."""
        if name in self._logs:
            return self._logs[name]
        if name not in TABLES:
            raise InvalidInput(f"a comparison has no table {name!r}; it has {', '.join((*TABLES, *self._logs))}.")
        return self._tables[name]

    @cached_property
    def _tables(self) -> dict[str, pa.Table]:
        predicted = predicted_of(self.base, self.measured.output_tokens)
        answer = self.summary
        sentences = (answer["verdict"], *answer["not_separated"], *answer["evidence"].get("not_used", ()))
        rows = {
            "miss_by_part": self.parts,
            "error_by_bucket": bucket_rows(self.measured, predicted, self.intervals),
            "drift_over_time": drift_rows(self.measured, predicted),
            "setting_suspects": self.suspects,
            "fitted_corrections": self._correction_rows(),
            "comparison_findings": [
                {"place": place, "sentence": f"{sentence[0].upper()}{sentence[1:]}"}
                for place, sentence in enumerate(sentences)
            ],
        }
        made = {name: as_table(contracts()[name], values) for name, values in rows.items()}
        return made | {"prediction_vs_production": by_request(self._requests, self.measured, self.base, self.misses)}

    def _correction_rows(self) -> list[dict[str, Any]]:
        """Return the corrections if they hold on later time, and none otherwise."""
        if not self.is_better:
            return []
        values = self._better
        before, after = (self.scores[name]["e2e"]["median_ape"] for name in ("uncorrected", "corrected"))
        shared = {"n": int(self.fitted_on.sum()), "fitted_on": f"first {1 - self._question.hold_out:.0%} of the log"}
        shared |= {"held_out_before": before, "held_out_after": after}
        shared["fingerprint"] = fingerprint(self.settings)
        rows = variant_of(self.explained[0].flags, values).corrections()
        return [{**row, **shared} for row in rows]

    def save(self, path: str | Path) -> None:
        """Write the comparison and the log to a DuckDB file."""
        with self._session.fork() as fork:
            for name in (*TABLES, *self._logs):
                fork.give(name, self.table(name), trusted=True)
            fork.save(path, [*TABLES, *self._logs])

    def sql(self, query: str) -> Any:
        """Return a DuckDB relation over the tables of the comparison and of the log."""
        for name in (*TABLES, *self._logs):
            self._session.give(name, self.table(name), trusted=True)
        return self._session.sql(query)

    def __repr__(self) -> str:
        return visible(f"Comparison({self.summary['verdict']})")

    def _repr_html_(self) -> str:
        return verdict_table(self.summary, self.parts, ("part", "miss_ms", "share"))
