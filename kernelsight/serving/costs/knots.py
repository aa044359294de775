"""Step shapes (knots) at which step costs are computed, placed so that interpolation errs by less than 0.5 %.

GEMMs jump at tile edges, and collectives where engines change the kernel: both sides of a jump are knots, and costs
between knots are linear. Attention is smooth: its knots are spaced by a constant ratio. A step's GPU time is a weighted
sum of knots; the loop adds up the weights, so that the same rows give the clock and the kernel breakdown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.sums import rounded, whole_sums
from kernelsight.kernels.knot_costs import RELIEF
from kernelsight.kernels.string_columns import combinations
from kernelsight.serving.costs.cuda_graphs import captured_sizes

# of a number of the residual stream (16 bits), which all-reduce sums
ACTIVATION_BYTES = 2.0
PARTS = ("tokens", "logits", "decode_attention", "decode_window", "prefill_attention", "mixed_decode", "experts")


# no bound: more requests than any engine admits, more tokens than any model reads
EVERYTHING = 1 << 62


# most deployments of a session that have knots for every load
FEW_DEPLOYMENTS = 8


class Reach(NamedTuple):
    """Upper bounds of a load on a deployment, within which step costs are needed."""

    requests: int  # that run at the same time
    tokens: int  # of one request, prompt and output


def edge_knots(largest: int) -> np.ndarray:
    """Return token counts up to ``largest``: both sides of tile edges of GEMMs, and the sizes of CUDA graphs.

    Up to 512 tokens every captured size is a knot: decode steps are not interpolated there, where the number of active
    experts grows fastest. Tile edges are 64 tokens apart up to 4096, then wider, as one more tile matters less.
    """
    captured = np.append(captured_sizes(512), [3, 6, 12, 17, 33])
    spaced = ((64, 64, 4096), (4096, 128, 16384), (16384, 1024, 131072), (131072, 8192, largest + 1))
    edges = np.concatenate([np.arange(first, last, width) for first, width, last in spaced])
    knots = np.unique(np.concatenate([captured, edges, edges + 1, [largest]]))
    return knots[knots <= largest]


def ratio_knots(smallest: int, largest: int, per_octave: int) -> np.ndarray:
    """Return whole numbers from ``smallest`` to ``largest`` at a constant ratio, ``per_octave`` for each doubling."""
    octaves = np.log2(max(largest, smallest) / smallest)
    steps = smallest * 2.0 ** (np.arange(int(octaves * per_octave) + 1) / per_octave)
    return np.unique(np.concatenate([np.rint(steps).astype(np.int64), [largest]]))


def with_more(knots: np.ndarray) -> np.ndarray:
    """Return knots and one ``RELIEF`` beyond the last: steps under a higher engine limit, for ``resource_gains``."""
    return np.append(knots, math.ceil(knots[-1] * RELIEF))


def switch_knots(switches_bytes: Sequence[float], bytes_per_token: float, largest: int) -> np.ndarray:
    """Return the token counts on both sides of the message sizes at which engines change the kernel of a collective.

    >>> switch_knots([2097152.0], 10240.0, 8192).tolist()
    [204, 205]
    """
    first = np.ceil(np.asarray(switches_bytes, dtype=float) / bytes_per_token).astype(np.int64)
    knots = np.unique(np.concatenate([first - 1, first]))
    return knots[(knots >= 1) & (knots <= largest)]


def part_knots(
    max_tokens: int,
    max_seqs: int,
    max_len: int,
    window: int,
    switches: Sequence[int] = (),
    query_tokens: int = 1,
    lock_step: bool = False,
    joins: bool = False,
    adapters: int = 0,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the two knot axes of each part of a step (tokens or sequences; context); the second is [0] where unused.

    ``max_tokens``, ``max_seqs``, ``max_len``, ``window``: limits of the engine (vLLM: max_num_batched_tokens,
    max_num_seqs, max_model_len) and width of windowed attention; ``switches``: token counts that are knots beside the
    tile edges; ``query_tokens``: of each decoding request; ``lock_step``: data-parallel ranks step together, so that
    the experts' tokens differ from the rank's own and are a part of their own; ``joins``: the kernel treats decodes
    of a step with prompts as prompts; ``adapters``: most in a step, whose number is the second axis of tokens.
    """
    none = np.array([0])
    tokens = np.union1d(edge_knots(max(max_tokens, max_seqs)), np.asarray(switches, dtype=np.int64))
    tokens = with_more(tokens)
    requests = with_more(ratio_knots(1, max_seqs, 6))
    contexts = np.concatenate([none, ratio_knots(min(64, max_len), max_len, 3)])
    axes = {
        "tokens": (tokens, np.append(none, ratio_knots(1, adapters, 2)) if adapters else none),
        "logits": (with_more(edge_knots(min(max_seqs * query_tokens, max(max_tokens, max_seqs)))), none),
        "decode_attention": (requests, contexts),
        # the time that past tokens add to a chunk jumps with the first of them: 0 and 1 are knots
        "prefill_attention": (with_more(ratio_knots(1, max_tokens, 6)), np.unique(np.concatenate([[0, 1], contexts]))),
    }
    if window:
        axes["decode_window"] = (requests, np.concatenate([none, ratio_knots(min(16, window), window, 3)]))
    if joins:
        axes["mixed_decode"] = (with_more(ratio_knots(1, max_seqs, 3)), np.union1d(contexts, [16, 32]))
    if lock_step:
        axes["experts"] = (tokens, none)
    return axes


def first_beyond(knots: np.ndarray, largest: int) -> int:
    """Return the index of the first knot above ``largest``; the number of knots where there is none."""
    return int(np.searchsorted(knots, largest, side="right"))


def within_reach(
    knots: pa.Table, requests: int | np.ndarray, tokens: int | np.ndarray, owner: int | np.ndarray = 0
) -> np.ndarray:
    """Return whether loads can reach each knot, (knots,): in attention, those up to the first beyond their bounds.

    ``knots``: columns part, x, y; ``requests``, ``tokens``: bounds of loads, as of :class:`Reach`; ``owner``: number of
    each knot's deployment, one number or one for each knot.
    """
    part = pc.fill_null(pc.index_in(knots["part"], pa.array(PARTS)), len(PARTS)).to_numpy().astype(np.int64)
    decodes, windowed, prefills, mixed = (
        part == PARTS.index(name) for name in ("decode_attention", "decode_window", "prefill_attention", "mixed_decode")
    )
    decodes |= mixed
    bounds = {
        "x": np.select([decodes | windowed, prefills], [requests, tokens], EVERYTHING),
        # the last knot of a window's contexts is its width
        "y": np.where(decodes | prefills, tokens, EVERYTHING),
    }
    axis = owner * (len(PARTS) + 1) + part
    reached = np.ones(part.size, bool)
    for name, bound in bounds.items():
        values = knots[name].to_numpy()
        beyond = np.full(axis.max(initial=0) + 1, np.inf)
        np.minimum.at(beyond, axis, np.where(values > bound, values, np.inf))
        reached &= values <= beyond[axis]
    return reached


@produces("kernel_evidence")
def evidence_within_reach(
    knot_evidence: pa.Table, step_shapes: pa.Table, deployment_reach: pa.Table
) -> list[dict[str, Any]]:
    """Evidence for the kernels of each deployment, added up over the step shapes that its loads can reach.

    A deployment that is not in ``deployment_reach`` has no evidence.
    """
    names = deployment_reach["deployment_id"].combine_chunks()
    shape_of, row_of = (
        pc.fill_null(pc.index_in(table["deployment_id"], names), len(names)).to_numpy().astype(np.int64)
        for table in (step_shapes, knot_evidence)
    )
    bounds = (pc.fill_null(deployment_reach[name], EVERYTHING).to_numpy() for name in ("requests", "tokens"))
    reached = within_reach(step_shapes, *(np.append(most, 0)[shape_of] for most in bounds), shape_of)
    shape_ids, row_ids = (table["step_shape_id"].to_numpy() for table in (step_shapes, knot_evidence))
    is_reached = np.zeros((len(names) + 1, max(shape_ids.max(initial=0), row_ids.max(initial=0)) + 1), bool)
    is_reached[shape_of, shape_ids] = reached & (shape_of < len(names))
    kept = knot_evidence.filter(pa.array(is_reached[row_of, row_ids]))
    rows, row = combinations(kept, ["deployment_id", "family", "tier", "evidence"])
    picoseconds = whole_sums(rounded(kept["gpu_us"].to_numpy() * 1e6), row, len(rows))
    return [{**each, "gpu_us": time / 1e6} for each, time in zip(rows, picoseconds.tolist(), strict=True)]


@produces("knot_bounds")
def bounds_of_knots(deployment_reach: pa.Table) -> pa.Table:
    """Bounds of the loads that the step costs of each deployment serve: any load, unless there are many deployments.

    For one or a few, knots beyond its loads cost little, and whoever asks next finds step costs in the cache. For many,
    they would be most of the time: bounds are then the next power of four.
    """
    if deployment_reach.num_rows <= FEW_DEPLOYMENTS:
        bounds = [pa.nulls(deployment_reach.num_rows, pa.int64())] * 2
    else:
        powers = 4 ** np.arange(32)
        most = (pc.fill_null(deployment_reach[name], EVERYTHING).to_numpy() for name in ("requests", "tokens"))
        bounds = [pa.array(powers[np.searchsorted(powers, values)]) for values in most]
    return pa.table([deployment_reach["deployment_id"], *bounds], ["deployment_id", "requests", "tokens"])


@produces("step_shapes")
def knot_shapes(
    deployment_settings: pa.Table,
    deployment_faults: pa.Table,
    kv_layout: pa.Table,
    models: pa.Table,
    kernel_implementations: pa.Table,
    knot_bounds: pa.Table,
) -> pa.Table:
    """Step shapes of each deployment that can run: the knots between which step costs are interpolated.

    Those of attention beyond ``knot_bounds`` are left out; a deployment that is not in it has none.
    """
    broken = set(deployment_faults["deployment_id"].to_pylist())
    windows = dict(zip(kv_layout["deployment_id"].to_pylist(), kv_layout["window_tokens"].to_pylist(), strict=True))
    selections = dict(zip(models["model"].to_pylist(), models["index_top_k"].to_pylist(), strict=True))
    hidden = dict(zip(models["model"].to_pylist(), models["hidden"].to_pylist(), strict=True))
    switches_bytes = _switches_bytes(kernel_implementations)
    names = (
        *("deployment_id", "model", "tp", "max_num_batched_tokens", "max_num_seqs", "max_model_len"),
        *("query_tokens", "lock_step", "attention_backend", "prefill_policy", "max_loras"),
    )
    joining = _joining(kernel_implementations)
    limits = zip(*(knot_bounds[name].to_pylist() for name in ("deployment_id", "requests", "tokens")), strict=True)
    reaches = {name: Reach(requests or EVERYTHING, tokens or EVERYTHING) for name, requests, tokens in limits}
    tables, shapes_of_axes = [], {}
    rows = zip(*(deployment_settings[name].to_pylist() for name in names), strict=True)
    for deployment, model, tp, max_tokens, max_seqs, max_len, query_tokens, lock_step, kernel, policy, loras in rows:
        if deployment in broken or deployment not in reaches:
            continue
        window = windows[deployment] or selections[model] or 0
        most_tokens = max(max_tokens, max_seqs)
        switches = switch_knots(switches_bytes if tp > 1 else [], ACTIVATION_BYTES * hidden[model], most_tokens)
        sizes = (max_tokens, max_seqs, max_len, min(window, max_len))
        # drafts make all decodes several tokens long, as prompts do: these steps cost the same alone
        joins = kernel in joining and policy == "mixed" and query_tokens == 1
        axes = (*sizes, tuple(switches.tolist()), query_tokens, lock_step, joins, loras)
        key = axes, reaches[deployment]
        if key not in shapes_of_axes:
            shapes = _shapes_of(part_knots(*axes))
            shapes_of_axes[key] = shapes.filter(pa.array(within_reach(shapes, *reaches[deployment])))
        tables.append(_with_deployment(deployment, shapes_of_axes[key]))
    return pa.concat_tables(tables) if tables else _with_deployment("", _shapes_of({}))


def _switches_bytes(implementations: pa.Table) -> list[float]:
    """Return the message sizes in bytes below which some engine uses its own all-reduce kernel, not NCCL's."""
    is_switch = pc.fill_null(pc.match_substring(implementations["coefficient"], "_below_"), False)
    values = implementations.filter(pc.and_(is_switch, pc.equal(implementations["family"], "all_reduce")))["value"]
    return sorted({value for value in values.to_pylist() if value})


def _joining(implementations: pa.Table) -> set[str]:
    """Return the attention kernels that treat single tokens as prompts where both share a step."""
    joins = pc.and_(pc.equal(implementations["coefficient"], "joins_prompts"), pc.greater(implementations["value"], 0))
    return set(implementations.filter(joins)["implementation"].to_pylist())


def _with_deployment(deployment: str, shapes: pa.Table) -> pa.Table:
    """Return step shapes with the deployment as their first column."""
    names = pa.DictionaryArray.from_arrays(np.zeros(shapes.num_rows, np.int32), [deployment]).cast(pa.string())
    return shapes.add_column(0, "deployment_id", names)


def _shapes_of(axes: dict[str, tuple[np.ndarray, np.ndarray]]) -> pa.Table:
    """Return the step shapes of knots, numbered part by part."""
    used_parts = [part for part in PARTS if part in axes]
    grids = [np.meshgrid(*axes[part], indexing="ij") for part in used_parts]
    x = np.concatenate([grid[0].ravel() for grid in grids]) if grids else np.zeros(0, np.int64)
    y = np.concatenate([grid[1].ravel() for grid in grids]) if grids else np.zeros(0, np.int64)
    part = np.repeat(np.arange(len(used_parts)), [grid[0].size for grid in grids])
    is_part = {name: part == number for number, name in enumerate(used_parts)}
    nowhere = np.zeros(x.size, dtype=bool)

    def where(name: str, values: np.ndarray | int) -> np.ndarray:
        return np.where(is_part.get(name, nowhere), values, 0).astype(np.int64)

    mixed, windowed = is_part.get("mixed_decode", nowhere), is_part.get("decode_window", nowhere)
    decode = is_part.get("decode_attention", nowhere) | mixed
    return pa.table(
        {
            "step_shape_id": np.arange(x.size),
            "part": pa.DictionaryArray.from_arrays(part.astype(np.int32), used_parts or [""]).cast(pa.string()),
            "x": x.astype(np.float64),
            "y": y.astype(np.float64),
            "tokens": where("tokens", x),
            "expert_tokens": pa.array(where("experts", x), mask=np.full(x.size, "experts" not in axes)),
            "sampled": where("logits", x),
            "adapters": where("tokens", y),
            "decode_requests": np.where(decode | windowed, x, 0).astype(np.int64),
            "decode_context": pa.array(y.astype(np.int64), mask=~decode),
            "decode_window_context": pa.array(y.astype(np.int64), mask=~(windowed | mixed)),
            "prefill_requests": where("prefill_attention", 1),
            "prefill_tokens": where("prefill_attention", x),
            "prefill_cached": where("prefill_attention", y),
        }
    )
