"""``Session``: the dataflow over the project's tables with the shipped catalogue, and its questions as methods."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from kernelsight.caches.memory_cache import memoised
from kernelsight.dataflow import session as dataflow
from kernelsight.dataflow.graph import Node
from kernelsight.dataflow.progress import Report
from kernelsight.dataflow.rows import is_rows
from kernelsight.errors import InvalidInput
from kernelsight.escape import as_html, visible
from kernelsight.kernels.families import LOWERED
from kernelsight.project_graph import cache_policy, embedded_facts, project_graph
from kernelsight.scenario.keywords import DEPLOYMENT, SCENARIO, SIZED, UPGRADED, takes_flags

if TYPE_CHECKING:
    from kernelsight.comparison.comparison import Comparison
    from kernelsight.forward.forward_step import Prediction
    from kernelsight.serving.runs.step_times import StepTimes
    from kernelsight.sizing.answer import Sizing
    from kernelsight.sweeps.gradient import Gradient
    from kernelsight.sweeps.runs import Run, WhatIf
    from kernelsight.upgrades.answer import Upgrade


def connect(path: str | Path | None = None, *, read_only: bool = False, files: bool = True) -> Session:
    """Open a session: in memory, or on a DuckDB file, which provides its tables and stores given ones.

    ``read_only`` opens a saved run without changing the file; without ``files``, queries read no local files.

    >>> with connect() as session:
    ...     session.table("number_formats").num_columns
    7
    """
    if path is None and read_only:
        raise InvalidInput("read_only needs the path of a saved run.")
    facts, how = embedded_facts(), {"read_only": read_only, "files": files, "cache_policy": cache_policy()}
    session = Session(project_graph(), facts, path=path, **how)
    if path is not None:
        from kernelsight.scenario.run_info import PACK, pack_as_saved

        session._facts[PACK] = pack_as_saved(session, facts[PACK])
    return session


class Session(dataflow.Session):
    """Given tables, shipped facts and computed tables, and methods that predict and simulate from them.

    No question changes the tables: each works in a fork. A session belongs to the thread that opened it.
    """

    def give(self, name: str, data: Any, *, trusted: bool = False) -> None:
        """Set the rows of a table; tables computed from the old rows are dropped.

        ``data``: anything with ``__arrow_c_stream__``, or a list of dicts; ``requests`` that are given are the loads
        of their scenarios, ``request_dependencies`` say which of them wait for which. A name that no contract has is a
        table of your own. See ``dataflow.session.Session.give``.
        """
        super().give(name, data, trusted=trusted)
        if name == "load_requests":  # its node would draw other dependencies
            super().give("load_dependencies", [])
        if name in ("requests", "request_dependencies") and "requests" in self.given():
            from kernelsight.serving.load.requests import loads_of_requests

            has_dependencies = "request_dependencies" in self.given()
            waits = self.table("request_dependencies") if has_dependencies else None
            for table, rows in loads_of_requests(self.table("requests"), waits).items():
                super().give(table, rows, trusted=True)

    def extend(self, name: str, rows: Any) -> None:
        """Add rows to a table, such as a hypothetical GPU; a row with the same key is replaced.

        A GPU as a dict may name a GPU that it is ``like``: it takes from that one what it does not state.

        >>> with connect() as session:
        ...     session.extend("gpus", [{"gpu": "wide", "like": "h100_sxm", "memory_bandwidth_bytes_per_s": 6.7e12}])
        ...     session.table("gpus").to_pylist()[-1]["measured_as"]
        'h100_sxm'
        """
        if name == "gpus" and is_rows(rows):
            from kernelsight.scenario.given_facts import gpu_rows

            super().extend(name, gpu_rows(self, rows, "rows of extend", "given in Python"))
        else:
            super().extend(name, rows)

    @takes_flags(*DEPLOYMENT)
    def predict(
        self,
        *,
        phase: Literal["prefill", "decode", "mixed"] = "decode",
        batch_size: int | None = None,
        input_len: int | None = None,
        context_len: int | None = None,
        **flags: Any,
    ) -> Prediction:
        """Predict one forward step of a deployment, kernel by kernel.

        Prefill: ``batch_size`` prompts of ``input_len`` new tokens after ``context_len`` cached ones; decode:
        ``batch_size`` sequences with ``context_len`` tokens in the cache; mixed: these decodes and one chunk of
        ``input_len``. ``flags``: model, gpu, tensor_parallel_size and others of ``kernelsight predict``.
        """
        from kernelsight.forward.forward_step import Prediction

        sizes = {"batch_size": batch_size, "input_len": input_len, "context_len": context_len}
        with self.fork() as fork:
            return Prediction.of(fork, flags, phase, sizes)

    @takes_flags(*DEPLOYMENT)
    def step_times(self, **flags: Any) -> StepTimes:
        """Return the step times of a deployment as a function of the batch; ``flags`` as to ``predict``."""
        from kernelsight.serving.runs.step_times import StepTimes

        return StepTimes(self, flags)

    @takes_flags(*SCENARIO)
    def simulate(self, *, correction: str | Path | pa.Table | None = None, **flags: Any) -> Run:
        """Simulate one scenario; ``flags`` as ``kernelsight simulate`` takes them, with underscores.

        ``correction``: corrections that ``compare`` fitted to a log of this deployment: a file, or its table
        ``fitted_corrections``.

        InvalidInput: flags that do not go together, or a deployment that cannot run, and why.
        """
        from kernelsight.sweeps.runs import Run

        return Run.of(self, flags, correction)

    def gradient(self, metric: str, fact: str | None = None, **flags: Any) -> Gradient | list[Gradient]:
        """Return the elasticity of a metric by a fact of its GPU; without ``fact``: by each, the strongest first.

        ``metric``: a column of ``scenario_summary`` such as ``"tpot_p50_ms"``; ``fact``: a column of ``gpus`` such as
        ``"memory_bandwidth_bytes_per_s"``; ``flags`` as to ``simulate``, or none in a session that holds one scenario.

        >>> load = {"request_rate": float("inf"), "num_prompts": 8, "input_len": 64, "output_len": 8}
        >>> with connect() as session:
        ...     found = session.gradient("tpot_p50_ms", "tdp_w", model="qwen3-0.6b", gpu="l4", **load)
        ...     round(found.elasticity, 3) <= 0.0
        True
        """
        from kernelsight.sweeps.gradient import gradients
        from kernelsight.sweeps.runs import Run

        if not flags:
            return gradients(self, metric, fact)
        run = Run.of(self, flags)
        derivatives = run.gradient(metric, fact)
        run.close()
        return derivatives

    @takes_flags()
    def what_if(self, grid: Any) -> WhatIf:
        """Simulate every scenario of a grid in one call.

        ``grid``: axes as a dict (the product of its lists), one row of flags or more as a list of dicts, or anything
        with ``__arrow_c_stream__``. InvalidInput names the row that cannot be used.

        >>> with connect() as session:
        ...     row = {"model": "qwen3-0.6b", "gpu": "l4", "max_concurrency": 4, "num_prompts": 8}
        ...     row |= {"input_len": 64, "output_len": 8}
        ...     found = session.what_if([row, row | {"gpu": "h100_sxm"}])
        ...     found.table("scenario_summary").column("completed").to_pylist()
        [8, 8]
        """
        return self.sweep(grid)

    @takes_flags()
    def sweep(
        self,
        grid: Any,
        *,
        slo: str | Sequence[str] | Mapping[str, float] | None = None,
        goodput: Mapping[str, float] | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        workers: int = 1,
        executor: Literal["local", "ray"] = "local",
        intervals: bool = False,
        correction: str | Path | pa.Table | None = None,
    ) -> WhatIf:
        """Simulate every scenario of a grid in partitions, on threads, processes (``workers``) or Ray (``executor``).

        ``slo``: largest values of summary columns, such as ``{"ttft_p99_ms": 2000.0}``, for the column
        ``meets_slo``; ``goodput``: objectives such as ``{"goodput_ttft_ms": 500.0}``; ``folder``, or the URI of an
        object store, keeps finished partitions, with which ``resume`` continues after a kill; ``intervals``: with 90 %
        intervals of TTFT, TPOT and throughput, which take three more simulations (otherwise
        ``table("scenario_intervals")`` makes them later);
        ``correction``: corrections that ``compare`` fitted (a file, or its table ``fitted_corrections``), for the
        deployments that they were fitted for.
        """
        from kernelsight.scenario.argument_checks import goodput_of, one_of
        from kernelsight.scenario.grid import grid_rows
        from kernelsight.scenario.objectives import stated_slo
        from kernelsight.sweeps.runs import WhatIf
        from kernelsight.sweeps.sweep import Execution

        one_of("executor", executor, ("local", "ray"))
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise InvalidInput(f"workers is {workers!r}; give a whole number of processes of at least 1.")
        if resume and not folder:
            raise InvalidInput("resume needs the folder in which the partitions of the sweep were kept.")
        how = {"workers": workers, "executor": executor, "connect": connect, "intervals": intervals}
        execution = Execution(folder=folder or None, resume=resume, **how)
        options = {
            "goodput": goodput_of(goodput) or None,
            "slo": slo and stated_slo(slo),
            "execution": execution,
            "correction": correction,
        }
        return WhatIf.of(self, grid_rows(grid), **options)

    @takes_flags()
    def find_rates(
        self,
        grid: Any,
        slo: str | Sequence[str] | Mapping[str, float],
        *,
        tolerance: float = 0.01,
        correction: str | Path | pa.Table | None = None,
    ) -> pa.Table:
        """Return the highest request rate that keeps ``slo`` for every row of a grid; see ``rate_questions``."""
        from kernelsight.scenario.grid import grid_rows
        from kernelsight.scenario.objectives import stated_slo
        from kernelsight.sweeps.rate_questions import find_rates

        return find_rates(self, grid_rows(grid), stated_slo(slo), tolerance=tolerance, correction=correction)

    @takes_flags(*SIZED, question="size_questions")
    def size(
        self,
        *,
        gpus: str | Sequence[str],
        slo: str | Sequence[str] | Mapping[str, float],
        rate: float | str | None = None,
        requests_per_day: float | str | None = None,
        prices: str | Path | Mapping[str, float] | None = None,
        max_gpus: int = 8,
        search: Mapping[str, Sequence[Any]] | None = None,
        tune: bool = True,
        correction: str | Path | pa.Table | None = None,
        confidence: float = 0.9,
        margin: float = 0.0,
        peak: float = 1.0,
        time_limit: float | None = None,
        effort: int = 1,
        total_gpus: int | None = None,
        users: float | str | None = None,
        daily_peak: float | str | Path | None = None,
        startup_seconds: float | str | None = None,
        disk_rate: float | str | None = None,
        electricity_price: float | None = None,
        what_if: str | Sequence[str] = (),
        report: Report | None = None,
        **flags: Any,
    ) -> Sizing:
        """Find the cheapest deployment that serves ``rate`` requests/s (or ``requests_per_day``) within objectives.

        Each GPU is searched with every parallel size up to ``max_gpus`` GPUs an instance; as many instances as keep
        every objective with probability ``confidence``, and leave the share ``margin`` of what they sustain unused, at
        ``peak`` times the rate. ``slo`` and ``search`` also as mappings, such as ``{"ttft_p95_ms": 1000.0}`` and
        ``{"quantization": [None, "fp8"]}``, ``prices`` by GPU; ``correction``: corrections that ``compare`` fitted (a
        file, or its table), for the deployments that it is for; ``what_if``: changes of the question that are answered
        too, such as ``["traffic=2", "traffic=2,output=2"]``; ``report`` is called with progress.
        InvalidInput: a question that cannot be answered, or a model that no GPU holds, and what would.
        """
        from kernelsight.sizing.answer import Sizing

        amount = {"rate": rate, "requests_per_day": requests_per_day, "users": users, "total_gpus": total_gpus}
        day = {"daily_peak": daily_peak, "startup_seconds": startup_seconds, "disk_rate": disk_rate}
        cost = {"prices": prices, "electricity_price": electricity_price}
        margins = {"confidence": confidence, "margin": margin, "peak": peak}
        searched = {"max_gpus": max_gpus, "search": search, "tune": tune, "time_limit": time_limit, "effort": effort}
        question = amount | day | cost | margins | searched
        given = {"gpus": gpus, "slo": slo, "correction": correction, "what_if": what_if}
        return Sizing.of(self, flags, report=report, **given, **question)

    @takes_flags(*UPGRADED, question="upgrade_questions")
    def upgrade(
        self,
        *,
        engine_from: str | None = None,
        engine_to: str | None = None,
        launch_to: str | None = None,
        **flags: Any,
    ) -> Upgrade:
        """Compare a deployment and its load in two versions of an engine, two engines or two launch lines.

        ``engine_from``, ``engine_to``: engine and version, such as ``"vllm:0.24"`` (default: that of the flags or their
        launch line, and the newest one of the sweeps); ``launch_to``: the launch line after, ``launch`` being the one
        before; ``flags`` as to ``simulate``. Both sides serve the same requests.
        InvalidInput: flags that do not go together, or a deployment that cannot run in one of the two.
        """
        from kernelsight.upgrades.answer import Upgrade
        from kernelsight.upgrades.question import Question

        return Upgrade(self.fork(), Question.of(flags, engine_from, engine_to, launch_to))

    @takes_flags(*SCENARIO, question="comparisons")
    def compare(
        self,
        *,
        deployment: Mapping[str, Any] | None = None,
        requests: Any = None,
        log: Any = (),
        baseline: Any = None,
        log_format: str = "auto",
        columns: Mapping[str, str] | None = None,
        steps: Any = (),
        metrics: Any = (),
        kernels: Any = (),
        stated: Mapping[str, Any] | None = None,
        fit: Literal["none", "host", "parts"] = "parts",
        hold_out: float = 0.3,
        suspects: Literal["all", "none"] = "all",
        **flags: Any,
    ) -> Comparison:
        """Compare a production log with its replay on a deployment: why they differ, and what corrects it.

        ``deployment``: its flags, or ``{"launch": "vllm serve ..."}`` with a GPU; or ``flags``, as to ``simulate``.
        ``requests``: a table of requests in memory (anything with ``__arrow_c_stream__``, or a list of dicts) in place
        of ``log``; ``stated``: flags of the load.
        Of a log that holds statistics of stages alone, these are drawn, simulated and compared. ``baseline``: requests
        or files of an earlier time: what changed since, on a deployment where one is stated, and without any otherwise.
        InvalidInput: a log without latencies or times of sending, or a deployment that cannot run.
        """
        from kernelsight.comparison.comparison import Comparison, LogFiles

        files = LogFiles(log if requests is None else requests, baseline, log_format, columns, steps, metrics, kernels)
        how = {"stated": stated, "fit": fit, "hold_out": hold_out, "suspects": suspects}
        return Comparison.of(self.fork(), files, deployment, flags, **how)

    @takes_flags()
    def search(self, scenarios: Any, *, space: Any = ()) -> pa.Table:
        """Search kernels, every scenario replayed in one call; return ``search_summary``.

        ``scenarios``: rows of ``search_scenarios`` (space and gpu at least) as a list of dicts or anything with
        ``__arrow_c_stream__``; ``space``: files of ``search import``, where the session has no kernel_candidates and
        kernel_measurements yet. The searches stay in the session: ``table("search_rounds")`` is their course.
        InvalidInput: a scenario that cannot be searched, and why.

        >>> with connect() as session:
        ...     session.give("kernel_spaces", [{"space": "toy", "source": "made up"}])
        ...     tiles = [(f"tile={tile}", f'{{"tile": {tile}}}', 10.0 + (tile - 5) ** 2) for tile in range(1, 10)]
        ...     own = {"space": "toy"}
        ...     candidates = [own | {"candidate_id": name, "parameters": text} for name, text, _ in tiles]
        ...     session.give("kernel_candidates", candidates)
        ...     run = own | {"gpu": "l4", "run": 1, "status": "ok", "source": "made up"}
        ...     times = [run | {"candidate_id": name, "latency_us": us} for name, _, us in tiles]
        ...     session.give("kernel_measurements", times)
        ...     found = session.search([{"space": "toy", "gpu": "l4", "budget_measurements": 9}])
        ...     found.column("best_candidate").to_pylist(), session.table("search_rounds").num_rows
        (['tile=5'], 2)
        """
        from kernelsight.searching.replays import give_searches

        give_searches(self, scenarios, [space] if isinstance(space, str | Path) else list(space))
        return self.table("search_summary")

    def _run(self, node: Node, asked: Collection[str]) -> None:
        """Run a node; kernel families that no deployment launches get empty tables, which saves 10 ms for each."""
        name = node.names[0]
        family, _, table_kind = name.rpartition("_")
        if family in LOWERED and table_kind in ("calls", "latencies") and not self._has_kernels(family, table_kind):
            self._tables[name] = self.graph.known(name).schema.empty_table()
        else:
            super()._run(node, asked)

    def _has_kernels(self, family: str, table_kind: str) -> bool:
        """Return whether any deployment launches kernels of a family."""
        if table_kind == "latencies":
            return self.table(f"{family}_calls").num_rows > 0
        from kernelsight.kernels.launch_signatures import launched_families

        names = ("deployment_settings", "sharded_layers", "layer_weights")
        tables = tuple(map(self.table, names))
        return family in memoised(tables, "launched families", lambda: frozenset(launched_families(*tables)))

    def __repr__(self) -> str:
        path_text = f" on {self.path}" if self.path else ""
        given_tables = ", ".join(sorted(self.given() | self._own)) or "nothing"
        return visible(f"Session{path_text}: given {given_tables}; .tables() lists all, .sql(...) asks")

    def _repr_html_(self) -> str:
        return f"<p>{as_html(repr(self))}</p>"
