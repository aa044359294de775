"""``Run`` and ``WhatIf``: one simulated scenario, or many, with a summary, and tables computed on demand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput, unknown
from kernelsight.escape import visible
from kernelsight.number_format import number
from kernelsight.present.show import lines_of, notebook, write_page
from kernelsight.scenario.corrections import give_corrections, refuse_unused_corrections
from kernelsight.scenario.launch.deployments import launch_assumptions, with_launch_line
from kernelsight.scenario.plan import Plan, give_plan, plan_rows
from kernelsight.scenario.run_info import ANSWERS, give_run_info, inputs_of
from kernelsight.scenario.scenario_rows import gpu_assumptions
from kernelsight.scenario.stated_flags import object_text
from kernelsight.sweeps.run_summary import METRICS, SERVED, TABLES, RunSummary, run_summary
from kernelsight.sweeps.sweep import Execution, pareto_front, plan_sweep, serve_plan

if TYPE_CHECKING:
    import altair
    import duckdb
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.present.page import Page
    from kernelsight.sweeps.gradient import Gradient

SWEEP = "sweep"
FIGURES = {"request_throughput": "req/s", "output_throughput": "output tok/s", "prefix_cache_hit_rate": "cache hits"}


class Run:
    """One simulated scenario: its summary, and every table of the graph, from one simulation.

    >>> import kernelsight as ks
    >>> with ks.connect() as s:
    ...     run = s.simulate(model="qwen3-0.6b", gpu="l4", max_concurrency=4, num_prompts=8, input_len=64, output_len=8)
    ...     run.summary["completed"], run.table("request_metrics").num_rows
    (8, 8)
    """

    def __init__(
        self,
        session: Session,
        seed: int | None = None,
        assumed: Sequence[str] = (),
        flags: Mapping[str, Any] | None = None,
    ) -> None:
        self._session, self._seed, self._assumed, self._flags = session, seed, list(assumed), flags

    @classmethod
    def of(cls, session: Session, flags: Mapping[str, Any], correction: str | Path | pa.Table | None = None) -> Run:
        """Simulate the scenario of one row of flags in a fork of a session; InvalidInput: it cannot run, and why.

        ``correction``: corrections that ``compare`` fitted to a log of this deployment, a file or a table.
        """
        from kernelsight.scenario.refusals import refuse_faults

        fork = session.fork()
        plan = plan_rows(fork, [flags], origin="")
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        refuse_faults(fork)
        assumed = gpu_assumptions(fork, with_launch_line(flags)) + launch_assumptions(flags)
        if correction is not None:
            assumed = [*assumed, give_corrections(fork, correction)]
            refuse_unused_corrections(fork, correction)
        return cls(fork, plan.planned[0]["seed"], assumed, flags)

    @property
    def session(self) -> Session:
        """The session that holds the scenario's tables."""
        return self._session

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Figures, latencies in ms, kernel breakdown, memory and assumptions, as ``simulate --format json`` prints.

        A column of ``scenario_summary``, such as ``"ttft_p99_ms"``, is a key too.
        """
        figures = run_summary(self._session)
        (columns,) = self._session.table("scenario_summary").to_pylist()
        return RunSummary(figures | {"assumed": self._assumed + figures["assumed"]}, columns)

    def table(self, name: str) -> pa.Table:
        """Return a table of the run, computed now unless it is available."""
        self._session.compute(*SERVED, name)
        return self._session.table(name)

    def advice(self) -> pa.Table:
        """Return changes of one setting that help (``setting_advice``), each simulated, those on no more GPUs first.

        InvalidInput: a scenario of a sweep, or a saved run, whose flags are not known.

        >>> import kernelsight as ks
        >>> load = {"max_concurrency": 16, "num_prompts": 48, "input_len": 64, "output_len": 16}
        >>> with ks.connect() as s:
        ...     s.simulate(model="qwen3-0.6b", gpu="l4", max_num_seqs=4, **load).advice()["setting"][0].as_py()
        'max_num_seqs'
        """
        if self._flags is None:
            raise InvalidInput("advice needs a run that was simulated from flags; simulate this scenario by itself.")
        (scenario,) = self._session.table("scenarios")["scenario_id"].to_pylist()
        flags = object_text(with_launch_line(self._flags))
        self._session.give("advice_questions", [{"scenario_id": scenario, "flags": flags}])
        return self._session.table("setting_advice")

    def gradient(self, metric: str, fact: str | None = None) -> Gradient | list[Gradient]:
        """Return the derivative of a metric of the run by a fact of its GPU, or without one by each, the largest first.

        ``metric``: a column of ``scenario_summary``; ``fact``: a column of ``gpus``. See ``Session.gradient``.
        """
        from kernelsight.sweeps.gradient import gradients

        return gradients(self._session, metric, fact)

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the tables of the run, and over DataFrames among the caller's variables."""
        self._session.compute(*SERVED)
        return self._session.sql(query)

    def save(self, path: str | Path, *, steps: bool = False) -> None:
        """Write the run to a DuckDB file; ``steps``: with one row per engine iteration."""
        extra = ["steps"] if steps else []
        extra += ["setting_advice"] if "advice_questions" in self._session.given() else []
        self._session.compute(*TABLES, "request_metrics", *extra)
        give_run_info(self._session, self._seed)
        self._session.save(path, [*inputs_of(self._session), *ANSWERS, *extra])

    def report(self, path: str | Path) -> None:
        """Write the run as one HTML page with its figures and tables (needs the extra ``report``)."""
        _check_ending(path, ".html")
        self._session.compute(*TABLES, "request_metrics", "steps")
        write_page(self.page(), path)

    def plot(self, figure: str = "Latency over time") -> altair.Chart:
        """Return a figure of the run's page as a Vega-Lite chart for a notebook (needs the extra ``report``).

        ``figure``: its title, such as "Latency", "Batch and queue" or "Kernels"; UnknownName: there is none of it.
        """
        from kernelsight.present.figures.charts import chart_of
        from kernelsight.present.figures.files import figures_of
        from kernelsight.present.page import queried

        drawn = {title: one for title, one in figures_of("run").items() if one.spec}
        if figure not in drawn:
            raise unknown("figure", figure, drawn, f"A run has {', '.join(drawn)}.")
        self._session.compute(*TABLES, "request_metrics", "steps")
        return chart_of(queried(self._session, [drawn[figure]])[0])

    def page(self) -> Page:
        """Return what ``simulate`` shows, for terminal, HTML and JSON."""
        from kernelsight.present.pages.simulate import simulation_page

        return simulation_page(self.summary, self._session)

    def timeline(self, path: str | Path, *, start_s: float | None = None, end_s: float | None = None) -> dict[str, int]:
        """Write the run as a Chrome trace (.json) for Perfetto; return the number of steps and events in it.

        ``start_s``, ``end_s``: only the steps that start in between, in seconds since the start of the run.
        InvalidInput: no time in between, or more than a viewer opens.

        >>> import tempfile
        >>> import kernelsight as ks
        >>> load = {"max_concurrency": 4, "num_prompts": 8, "input_len": 64, "output_len": 8}
        >>> with ks.connect() as s, tempfile.TemporaryDirectory() as folder:
        ...     s.simulate(model="qwen3-0.6b", gpu="l4", **load).timeline(Path(folder) / "trace.json")["requests"]
        8
        """
        from kernelsight.present.trace.timeline import write_timeline

        _check_ending(path, ".json")
        self._session.compute(*SERVED, "request_metrics", "steps")
        return write_timeline(self._session, path, start_s, end_s)

    def close(self) -> None:
        """Close the run's session and free its tables."""
        self._session.close()

    def __repr__(self) -> str:
        summary = self.summary
        duration, throughput, *latencies = (
            number(value, missing="-")
            for value in (
                *(summary["duration_s"], summary["output_throughput"]),
                *(summary[f"{name}_ms"]["p50"] for name in METRICS[:2]),
            )
        )
        shown = ", ".join(f"{name.upper()} p50 {value} ms" for name, value in zip(METRICS, latencies, strict=False))
        return visible(
            f"Run({summary['model']} on {summary['gpu']}: {summary['completed']:,} of {summary['requests']:,} requests "
            f"in {duration} s, {shown}, {throughput} output tokens/s)"
        )

    def _repr_html_(self) -> str:
        return notebook(self.page())


class WhatIf:
    """Many simulated scenarios: their flags beside their summaries, and every table of each on demand.

    ``assumed``: sentences on GPUs that have another name in the tables than in the grid.

    >>> import kernelsight as ks
    >>> grid = {"model": "qwen3-0.6b", "gpu": "l4", "max_concurrency": [1, 4]}
    >>> grid |= {"num_prompts": 8, "input_len": 64, "output_len": 8}
    >>> with ks.connect() as s:
    ...     s.what_if(grid).table("scenario_summary")["completed"].to_pylist()
    [8, 8]
    """

    def __init__(self, session: Session, plan: Plan, summary: pa.Table, assumed: Sequence[str] = ()) -> None:
        self._session, self._plan, self._summary = session, plan, summary
        self.assumed: list[str] = list(assumed)
        self._runs: dict[str, Run] = {}

    @classmethod
    def of(
        cls,
        session: Session,
        rows: Sequence[Mapping[str, Any]],
        *,
        goodput: Mapping[str, float] | None = None,
        slo: Mapping[str, float] | None = None,
        execution: Execution | None = None,
        correction: str | Path | pa.Table | None = None,
    ) -> WhatIf:
        """Simulate the scenarios of rows of flags; see ``serve_plan``.

        ``correction``: corrections that ``compare`` fitted, a file or a table; they do not change other deployments.
        """
        fork = session.fork()
        plan = plan_sweep(fork, rows, goodput)
        if correction is not None:
            give_corrections(fork, correction)
            with fork.fork() as planned:
                give_plan(planned, list(plan.deployments.values()), plan.planned)
                refuse_unused_corrections(planned, correction)
        named = dict.fromkeys((row.get("gpu"), row.get("prefill_gpu")) for row in rows)
        flags = [dict(zip(("gpu", "prefill_gpu"), names, strict=True)) for names in named]
        assumed = dict.fromkeys(sentence for names in flags for sentence in gpu_assumptions(fork, names))
        return cls(fork, plan, serve_plan(fork, plan, slo=slo, execution=execution), [*assumed])

    @property
    def summary(self) -> pa.Table:
        """The flags of each row beside its row of ``scenario_summary``, costs and objectives: what a sweep prints.

        ``grid_row``: the row of the grid, counted from 1; rows are sorted by ``scenario_id``.
        """
        return self._summary

    @property
    def scenarios(self) -> list[str]:
        """The names of the scenarios, in the order of ``summary``."""
        return self._summary["scenario_id"].to_pylist()

    @cached_property
    def pareto_front(self) -> pa.Table:
        """The rows of ``summary`` that no other beats in tokens/s per GPU without losing tokens/s per user."""
        return pareto_front(self._session, self._summary)

    @cached_property
    def energy_front(self) -> pa.Table:
        """The rows of ``summary`` that no other beats in J per output token without losing tokens/s per user."""
        return pareto_front(self._session, self._summary, "energy_front")

    def scenario(self, scenario_id: str) -> Run:
        """Return one scenario as a ``Run``, simulated without the others. UnknownName: there is no such scenario."""
        if scenario_id not in self._runs:
            chosen = [row for row in self._plan.planned if row["scenario_id"] == scenario_id]
            if not chosen:
                raise unknown("scenario", scenario_id, self.scenarios, "`scenarios` lists them.")
            fork = self._session.fork()
            give_plan(fork, self._plan.deployments_of(chosen), chosen)
            self._runs[scenario_id] = Run(fork, chosen[0]["seed"])
        return self._runs[scenario_id]

    def table(self, name: str, scenario: str | None = None) -> pa.Table:
        """Return a table of all scenarios, or of one that is simulated alone.

        ``scenario_summary`` has the flags of the grid beside it.
        """
        if name in ("scenario_summary", SWEEP) and scenario is None:
            return self._summary
        return self.scenario(scenario).table(name) if scenario else self._all.table(name)

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the tables of all scenarios, ``scenario_summary`` as ``summary`` is.

        >>> import kernelsight as ks
        >>> load = {"max_concurrency": 4, "num_prompts": 8, "input_len": 64, "output_len": 8}
        >>> with ks.connect() as s:
        ...     w = s.what_if({"model": "qwen3-0.6b", "gpu": ["l4", "h100_sxm"]} | load)
        ...     w.sql("select grid_row, gpu, completed from scenario_summary order by grid_row").fetchall()
        [(1, 'l4', 8), (2, 'h100_sxm', 8)]
        """
        return self._all.sql_with(query, {"scenario_summary": self._summary})

    def save(self, path: str | Path) -> None:
        """Write the sweep to a DuckDB file, from which every table of every scenario can be computed."""
        session = self._all
        give_run_info(session)
        with session.fork() as fork:
            for name, front in (("pareto_front", self.pareto_front), ("energy_front", self.energy_front)):
                fork.give(name, front.select(session.graph.known(name).column_names), trusted=True)
            fork.save(path, [*inputs_of(fork), SWEEP, "scenario_summary"])

    def report(self, path: str | Path) -> None:
        """Write the sweep as one HTML page: Pareto front of each load, and scenarios (needs the extra ``report``)."""
        _check_ending(path, ".html")
        write_page(self.page(), path)

    def plot(
        self, x: str = "output_throughput_per_user", y: str = "output_throughput_per_gpu", color: str = ""
    ) -> altair.Chart:
        """Return a point for each scenario, of columns of ``summary``, as a Vega-Lite chart (the extra ``report``).

        ``color``: a column whose values have colours. Points that differ in ``x`` alone are joined to a line, dashed by
        another flag that varies. UnknownName: ``summary`` lacks a column.
        """
        from kernelsight.present.figures.charts import points_of

        columns = self._summary.column_names
        results = {*self._session.graph.known("scenario_summary").column_names, "grid_row"}
        return points_of(
            self._summary.to_pylist(), columns, [name for name in columns if name not in results], x, y, color
        )

    def page(self, slo: Collection[str] = ()) -> Page:
        """Return what ``sweep`` shows, for terminal, HTML and JSON; ``slo``: columns of the objectives."""
        from kernelsight.present.pages.sweep import sweep_page

        fronts = {"pareto_front": self.pareto_front, "energy_front": self.energy_front}
        page = sweep_page(self._summary, fronts, slo, session=lambda: self._all)
        return page._replace(assumed=[*self.assumed, *page.assumed])

    @cached_property
    def _all(self) -> Session:
        """The session with the inputs of all scenarios."""
        fork = self._session.fork()
        give_plan(fork, list(self._plan.deployments.values()), self._plan.planned)
        columns = fork.graph.known("scenario_summary").column_names
        fork.give("scenario_summary", self._summary.select(columns), trusted=True)
        fork.give(SWEEP, self._summary)
        return fork

    def __len__(self) -> int:
        return self._summary.num_rows

    def __repr__(self) -> str:
        status = self._summary["status"].to_pylist()
        return f"WhatIf({len(self):,} scenarios, {status.count('served'):,} served; .summary, .scenario(ID), .sql(...))"

    def __str__(self) -> str:
        return "\n".join(lines_of(self.page()))

    def _repr_html_(self) -> str:
        return notebook(self.page())


def _check_ending(path: str | Path, ending: str) -> None:
    if Path(path).suffix.lower() != ending:
        raise InvalidInput(f"{path} ends in {Path(path).suffix or 'nothing'}; what is written is {ending}: name it so.")
