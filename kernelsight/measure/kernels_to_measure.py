"""Plans measurements on a GPU: chooses the kernels whose measurement lowers the expected error of served models most.

``expected_error`` is the mean standard deviation of the log latency over a family's calls, weighted by share of time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelsight.errors import unknown
from kernelsight.kernels.portability import in_danger
from kernelsight.measure.points_to_measure import KERNEL
from kernelsight.measure.suite import FAMILIES, SUSTAINED, number_formats
from kernelsight.measure.timing import WORKED_SECONDS
from kernelsight.number_format import number

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

TENSOR_PARALLEL_SIZES = (1, 2, 4)
# typical steps of serving: (decode sequences, cached tokens of each), and (tokens of a prefill chunk, cached tokens)
DECODES = tuple(itertools.product((1, 8, 32, 128, 512), (512, 4096)))
CHUNKS = tuple(itertools.product((128, 512, 2048, 8192), (0, 8192)))
# setup time of a point (buffers, graphs, choice of an algorithm; assumed); replays per median, their duration in us,
# and the fewest launches of one
SETUP_SECONDS, REPLAYS, REPLAY_US, LEAST_LAUNCHES = 0.2, 40, 1000.0, 4
# least share of the models' time from which a family is reported as unmeasured
LEAST_SHARE = 0.005
# the cost of a launch without work: the first second of every plan
LAUNCHES = {"family": "launch", "implementation": ["empty_graph", "graph_launch", "eager_launch"]}
# sums of decimals do not depend on the order of rows, so that equal plans have equal points
CALLS = """
select calls.family, calls.shape, calls.format, calls.math,
       sum((calls.count * latencies.latency_us / totals.total_us)::decimal(38, 15))::double as weight,
       max(latencies.latency_us) as latency_us,
       max(ln(latencies.latency_p95_us / latencies.latency_us)) as half
from kernel_calls as calls
join kernel_latencies as latencies using (deployment_id, step_shape_id, call)
join (
  select deployment_id, step_shape_id, sum((count * latency_us)::decimal(38, 9))::double as total_us
  from kernel_latencies group by all
) as totals using (deployment_id, step_shape_id)
group by calls.family, calls.shape, calls.format, calls.math
order by calls.family, weight desc, calls.shape, calls.format, calls.math
"""
EVIDENCE = "select family, evidence, sum(count * latency_us) as gpu_us from kernel_latencies group by all order by all"


def served_calls(
    session: Session, gpu: str, models: Sequence[str], engines: Sequence[str] = ("vllm",)
) -> list[dict[str, Any]]:
    """Return the kernel calls of the models' typical steps on a GPU, one dict per family, shape and formats.

    ``weight``: share of the steps' time; ``latency_us``; ``half``: half width of the 90 % interval of log latency.
    UnknownName: no such model, GPU or engine.
    """
    from kernelsight.scenario.scenario_rows import deployment_row, normalise, resolve_names

    deployments, steps = [], []
    for model, engine, size in itertools.product(models, engines, TENSOR_PARALLEL_SIZES):
        flags = {"model": model, "gpu": gpu, "engine": engine, "tensor_parallel_size": size}
        flags = resolve_names(session, normalise(flags))  # adds the model of a config.json to ``models``
        row = {**deployment_row(flags), "deployment_id": f"{model}-{engine}-{size}"}
        heads = dict(zip(*(session.table("models")[name].to_pylist() for name in ("model", "heads")), strict=True))
        if heads[row["model"]] % size:
            continue
        deployments.append(row)
        steps += [{"deployment_id": row["deployment_id"], **step} for step in _steps()]
    session.give("deployments", deployments)
    session.give("step_shapes", steps)
    return [
        dict(zip(relation.columns, row, strict=True))
        for relation in [session.sql(CALLS)]
        for row in relation.fetchall()
    ]


def _steps() -> list[dict[str, Any]]:
    from kernelsight.forward.forward_step import step_shape

    steps = [step_shape("decode", batch, None, context, None) for batch, context in DECODES]
    steps += [step_shape("prefill", 1, chunk, cached, None) for chunk, cached in CHUNKS]
    return [{**step, "step_shape_id": number} for number, step in enumerate(steps)]


def of_families(points: Sequence[dict[str, Any]], words: str | None) -> list[dict[str, Any]]:
    """Return the points of the comma-separated families, or of all if none is named; UnknownName: no such family."""
    names = [name.strip() for name in (words or "").split(",") if name.strip()]
    for name in names:
        if name not in FAMILIES:
            raise unknown("kernel family", name, list(FAMILIES), f"Known: {', '.join(FAMILIES)}.")
    return [point for point in points if not names or point["family"] in names]


def shares_unmeasured(calls: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of the time of all calls that no point represents, by family, the largest first.

    >>> shares_unmeasured([{"family": "moe", "weight": 3.0}, {"family": "gemm", "weight": 1.0}],
    ...     [{"family": "gemm", "weight": 1.0}])
    {'moe': 0.75}
    """
    unmeasured: dict[str, float] = {}
    for rows, sign in ((calls, 1.0), (points, -1.0)):
        for row in rows:
            unmeasured[row["family"]] = unmeasured.get(row["family"], 0.0) + sign * row["weight"]
    total = sum(call["weight"] for call in calls)
    shares = {family: weight / total for family, weight in unmeasured.items() if weight > LEAST_SHARE * total}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def features_of_points(points: Sequence[Mapping[str, Any]], gpu: str, gpus: pa.Table) -> list[np.ndarray]:
    """Return the features (F,) of each point that a correction reads: sizes, work, and rounding to tiles and waves."""
    from kernelsight.catalog.tables import facts
    from kernelsight.fitting.measured import features_of
    from kernelsight.kernels.families import FAMILIES as KERNEL_FAMILIES

    features: dict[int, np.ndarray] = {}
    tables = (facts("kernel_implementations"), gpus, facts("fabrics"))
    for family, (indices, table) in _calls_by_family(points, gpu).items():
        family_features = features_of(family, KERNEL_FAMILIES[family].latency_model, table, *tables)
        features.update(zip(indices, family_features, strict=True))
    return [features[index] for index in range(len(points))]


def _calls_by_family(points: Sequence[Mapping[str, Any]], gpu: str) -> dict[str, tuple[list[int], pa.Table]]:
    """Return by family the indices of its points, and their calls as training rows."""
    import pyarrow as pa

    from kernelsight.fitting.training import call_rows
    from kernelsight.measure.rows import sweep_schema

    by_family = {}
    for family in dict.fromkeys(point["family"] for point in points):
        indices = [index for index, point in enumerate(points) if point["family"] == family]
        rows = []
        for point in (points[index] for index in indices):
            number_format, math = number_formats(family, point["dtype"], point["implementation"])
            columns = {name: point[name] for name in ("family", "implementation", "dtype", "shape", "latency_us")}
            rows.append({**columns, "gpu": gpu, "engine": "planned", "format": number_format, "math": math})
        by_family[family] = indices, call_rows(pa.Table.from_pylist(rows, sweep_schema()), family)
    return by_family


def choose(
    points: Sequence[Mapping[str, Any]], features: Sequence[np.ndarray], seconds: float
) -> tuple[list[int], list[dict[str, Any]]]:
    """Choose points for a budget of ``seconds``: their indices, and one printed row per family.

    The first point of each family, and of each number of GPUs, comes first, then the largest gain per second.
    ``features``: of each point; only points of one group are compared, so families may have different features.
    """
    from kernelsight.fitting.experimental_design import greedy_design

    groups = [_group(point) for point in points]
    sizes = _positions(features, groups)
    weight = np.array([point["weight"] for point in points])
    deviation = np.array([point["deviation"] for point in points])
    point_seconds = np.array([seconds_of(point) for point in points])
    ranked = [step.candidate for step in greedy_design(sizes, deviation, weight, point_seconds, groups)]
    ordered = list(dict.fromkeys([*first_of_families(points, ranked), *ranked]))
    spent_s = np.cumsum(point_seconds[ordered])
    chosen = ordered[: max(int(np.searchsorted(spent_s, seconds, "right")), 1)]
    return chosen, _by_family(points, chosen, deviation, _deviation_after(sizes, deviation, groups, chosen))


def choose_points(
    points: Sequence[Mapping[str, Any]], gpu: str, gpus: pa.Table, coefficients: pa.Table, per_kernel: int
) -> tuple[list[int], list[dict[str, Any]]]:
    """Choose up to ``per_kernel`` points of each kernel, those that lower the expected error most.

    Returns their indices, the most useful call of a kernel first, and one printed row per family. Of a collective, one
    call of each number of GPUs is chosen. ``coefficients``: the pack, for the slopes of latencies with its constants.
    """
    from kernelsight.catalog.tables import facts
    from kernelsight.fitting.few_shot import measured_calls
    from kernelsight.fitting.planned_points import deviation_after, planned
    from kernelsight.kernels.call_kinds import ALONE
    from kernelsight.kernels.few_shot import prior_for
    from kernelsight.kernels.kernel_constants import vendors_of
    from kernelsight.kernels.pack import with_assumed

    prior = prior_for(vendors_of(gpus)[gpu])
    tables, pack = (facts("kernel_implementations"), gpus, facts("fabrics")), with_assumed(coefficients)
    weight, deviation = (np.array([point[name] for point in points]) for name in ("weight", "deviation"))
    chosen, after = [], deviation.copy()
    for family, (indices, table) in _calls_by_family(points, gpu).items():
        inputs = measured_calls(family, table, gpu, pack, tables, ALONE).inputs
        groups = np.array([_group(points[index]) for index in indices])
        most = 1 if "gpus" in FAMILIES[family].sizes else per_kernel
        of_groups = [np.flatnonzero(groups == name) for name in dict.fromkeys(groups.tolist())]
        family_chosen = np.concatenate(
            [rows[planned(inputs.at(rows), weight[indices][rows], most, prior)] for rows in of_groups]
        )
        after[indices] *= deviation_after(inputs, family_chosen, prior) / deviation_after(
            inputs, family_chosen[:0], prior
        )
        chosen += [indices[number] for number in family_chosen.tolist()]
    return chosen, _by_family(points, chosen, deviation, after)


def _group(point: Mapping[str, Any]) -> str:
    """Return the kernel of a point, and the number of its GPUs: points of one group have correlated errors."""
    return "|".join(str(part) for part in (*(point[name] for name in KERNEL), point["shape"].get("gpus", 1)))


def first_of_families(points: Sequence[Mapping[str, Any]], ranked: Sequence[int]) -> list[int]:
    """Return the first point of each family and number of GPUs: what a new GPU differs by is one factor a family.

    Of a family's kernels the one that most time is spent on counts; families by their share of time, collectives last.
    """
    time: dict[Any, float] = {}
    for point in points:
        for key in (_group(point), (point["family"], point["shape"].get("gpus", 1))):
            time[key] = time.get(key, 0.0) + point["weight"]
    first: dict[Any, int] = {}
    for index in sorted(ranked, key=lambda index: -time[_group(points[index])]):
        first.setdefault((points[index]["family"], points[index]["shape"].get("gpus", 1)), index)
    return [first[key] for key in sorted(first, key=lambda key: (key[1] > 1, -time[key]))]


def sustained_product(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the longest product of 16 bits, to be measured once the power limit has taken hold; none without one."""
    products = [point for point in points if point["family"] == "gemm" and point["dtype"] in ("bf16", "fp16")]
    longest = max(products, key=lambda point: point["latency_us"], default=None)
    return [{**longest, "cache": SUSTAINED}] if longest else []


def first_minute(
    session: Session,
    points: Sequence[Mapping[str, Any]],
    chosen: Sequence[int],
    product: Sequence[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:
    """Return chosen points in the order in which to measure them: one of each family, then the sustained ``product``.

    Then one collective of each number of GPUs, and the others: those first whose families extrapolate in the danger
    region (``eta_portability``). ``session``: of :func:`served_calls`.
    """
    first = first_of_families(points, chosen)
    alone = [index for index in first if points[index]["shape"].get("gpus", 1) == 1]
    shares: dict[str, float] = {}
    for row in in_danger(session.query(EVIDENCE).to_pylist(), lambda: session.table("eta_portability")):
        shares[row["family"]] = shares.get(row["family"], 0.0) + row["share"]
    others = sorted(chosen, key=lambda index: -shares.get(points[index]["family"], 0.0))
    later = dict.fromkeys([*first[len(alone) :], *(index for index in others if index not in set(first))])
    return [*(points[index] for index in alone), *product, *(points[index] for index in later)]


def _by_family(
    points: Sequence[Mapping[str, Any]], chosen: Sequence[int], before: np.ndarray, after: np.ndarray
) -> list[dict[str, Any]]:
    """Return one row per family: points chosen, their seconds, and the expected error of its calls before and after."""
    rows, weight = [], np.array([point["weight"] for point in points])
    for family in sorted({point["family"] for point in points}):
        indices = [index for index, point in enumerate(points) if point["family"] == family]
        family_chosen = [number for number in chosen if number in set(indices)]
        weights = weight[indices] / weight[indices].sum()
        rows.append(
            {
                "family": family,
                "points": len(family_chosen),
                "seconds": float(sum(seconds_of(points[number]) for number in family_chosen)),
                "of_calls": len(indices),
                "expected_error_before": float(weights @ before[indices]),
                "expected_error_after": float(weights @ after[indices]),
            }
        )
    return rows


def _positions(features: Sequence[np.ndarray], groups: Sequence[str]) -> np.ndarray:
    """Return (points, features) positions within each group, padded with 0 to the largest number of features."""
    from kernelsight.fitting.experimental_design import positions

    padded = np.zeros((len(features), max(len(point_features) for point_features in features)))
    for name in set(groups):
        members = [number for number, group in enumerate(groups) if group == name]
        group_positions = positions(np.stack([features[number] for number in members]))
        padded[members, : group_positions.shape[1]] = group_positions
    return padded


def _deviation_after(
    sizes: np.ndarray, deviation: np.ndarray, groups: Sequence[str], chosen: Sequence[int]
) -> np.ndarray:
    """Return the expected deviation of every point once the chosen ones are measured."""
    from kernelsight.fitting.experimental_design import remaining

    return remaining(sizes, deviation, groups, chosen)


def seconds_of(point: Mapping[str, Any]) -> float:
    """Return the seconds that measuring a point takes."""
    worked_s = WORKED_SECONDS if point["cache"] == SUSTAINED else 0.0
    return SETUP_SECONDS + worked_s + REPLAYS * max(REPLAY_US, LEAST_LAUNCHES * point["latency_us"]) * 1e-6


def suite_of_points(
    points: Sequence[Mapping[str, Any]],
    name: str,
    gpu: str,
    minutes: float,
    models: Sequence[str],
    engines: Sequence[str] = ("vllm",),
) -> dict[str, Any]:
    """Return the suite of points: empty launches, then one entry per kernel, format and cache state.

    Entries are in the order of their first point.
    """
    entries: dict[tuple[str, ...], dict[str, Any]] = {("launch",): LAUNCHES}
    for point in points:
        key = (*(point[name] for name in (*KERNEL, "cache")), point["shape"].get("gpus"))
        entry = entries.setdefault(key, {name: point[name] for name in (*KERNEL, "cache")})
        entry.setdefault("points", []).append(point["shape"])
    doc = f"Planned for {', '.join(models)} with {', '.join(engines)} on {gpu}: {number(minutes, 2)} minutes."
    return {"suite": name, "doc": doc, "minutes": minutes, "entries": list(entries.values())}
