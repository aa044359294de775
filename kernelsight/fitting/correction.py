"""The correction of a measured GPU: a small network fitted to the log residual of the physics expression on its sweep.

latency = expression x exp(delta), delta = strength x fade x net, |net| <= ln 4, where net is two tanh layers over
:mod:`kernelsight.kernels.features` with separate biases for each kernel (engine, implementation, dtype). Features are
clipped to the range of the sweep, and delta fades with the octaves that a call lies outside it.

How it is fitted: teacher networks learn the GPU's rows, each without one fold of its sites. A teacher's error on the
fold it has not seen is the error to expect at an unmeasured site (cross-validation+, Barber et al. 2021, arXiv
1905.02928); where that is no better than the expression alone, the kernel's strength shrinks its correction. Then the
teachers see all rows, and the network that ships, the student, learns their mean (distillation, Hinton et al. 2015,
arXiv 1503.02531) at the measured shapes, between them, and at the shapes that other GPUs measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from kernelsight.dataflow.array_expressions import bucket, padded
from kernelsight.kernels.network import BY_NODE, MOST, Network

TEACHERS, FOLD_STEPS, TEACHER_STEPS = 4, 4000, 5000
# hidden units of a teacher's two layers; rows of a training step
WIDTHS, BATCH = (64, 64), 512
LEARNING_RATE, DECAY = 5e-3, 1e-3
# the learning rate rises from the first share of it to it in the first steps, and falls to the last share
WARM_UP, FIRST_SHARE, LAST_SHARE = 0.1, 1.0 / 25.0, 1e-4 / 25.0
# steps of a compiled loop, and its fewest rows: fits with other numbers of steps or rows share the loop
CALL_STEPS, LEAST_ROWS = 500, 4096
# measurement noise: log errors below it are not distinguished
NOISE = 0.03
# rows for which the steps above are meant; steps scale with the root of the rows, within these factors
STEPS_ROWS, LEAST_STEPS, MOST_STEPS = 8000, 0.25, 2.0
# arrays stored in float32: in units of features, large beside their differences
PRECISE = ("low", "high", "centre", "scale")


class Student(NamedTuple):
    """The size of the network that ships: hidden units of its two layers, and its training steps."""

    widths: tuple[int, int] = (64, 64)
    steps: int = 12_000


WIDE = Student()


class Fit(NamedTuple):
    """A fitted network, its kernels in the order of their nodes, and the log error of each row of the GPU.

    ``unseen_error``: shape (rows of the GPU,), by teachers that had not seen the row's site.
    """

    network: Network
    nodes: list[str]
    unseen_error: np.ndarray


def fit_correction(
    features: np.ndarray,
    log_ratio: np.ndarray,
    kernels: Sequence[str],
    gpus: Sequence[str],
    target: str,
    sites: np.ndarray,
    matter: np.ndarray,
    effort: float = MOST_STEPS,
    student: Student = WIDE,
    least_sites: int = 2 * TEACHERS,
) -> Fit:
    """Fit the correction of ``target`` to log(measured / expression) of its rows; deterministic.

    ``features``: (rows, F); ``log_ratio``: (rows,); ``kernels``: "engine|implementation|dtype" and ``gpus``: the GPU of
    each row: of other GPUs' rows only the shapes are used. ``sites``: (rows,), number of each row's site, held out
    together; ``matter``: (F,), see :class:`Network`; ``effort``: most steps, in units of those for STEPS_ROWS rows;
    ``student``: size of the network that ships; ``least_sites``: with fewer sites, rows are held out instead.
    """
    is_target = np.asarray(gpus) == target
    kernels, other_features = np.asarray(kernels), features[~is_target]
    nodes, node = np.unique(kernels[is_target], return_inverse=True)
    features, log_ratio = features[is_target], log_ratio[is_target]
    fold = _folds(sites[is_target], TEACHERS, least_sites)
    centre, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
    inputs, words = ((features - centre) / scale).astype(np.float32), _kernel_indicators(nodes)
    share = float(np.clip(math.sqrt(inputs.shape[0] / STEPS_ROWS), min(LEAST_STEPS, effort), effort))
    goals = np.tile(np.clip(log_ratio, -MOST, MOST), (TEACHERS, 1))
    is_training = np.stack([fold != member for member in range(TEACHERS)]).astype(float)
    teachers = _train(inputs, words[node], goals, is_training, int(FOLD_STEPS * share), seed=0)
    outputs = np.clip(_outputs(teachers, inputs, words[node]), -MOST, MOST)
    unseen = np.where(fold >= 0, outputs[fold, np.arange(fold.size)], 0.0)
    strength = np.array([_strength(log_ratio[node == at], unseen[node == at]) for at in range(nodes.size)])
    teachers = _train(inputs, words[node], goals, np.ones_like(is_training), int(TEACHER_STEPS * share), 1, teachers)
    between, between_node = _between(inputs, node)
    others_node = _nodes_of_others(kernels[~is_target], nodes)
    others = ((other_features - centre) / scale).astype(np.float32)
    student_inputs = np.concatenate([inputs, between, np.clip(others, -4.0, 4.0)])
    student_words = words[np.concatenate([node, between_node, others_node])]
    teachers_mean = _outputs(teachers, student_inputs, student_words).mean(axis=0)[None]
    trained = _train(
        student_inputs,
        student_words,
        teachers_mean,
        np.ones_like(teachers_mean),
        int(student.steps * share),
        seed=2,
        widths=student.widths,
    )
    network = Network(
        low=features.min(axis=0),
        high=features.max(axis=0),
        matter=np.asarray(matter, dtype=float),
        centre=centre,
        scale=scale,
        strength=strength,
        **_with_node_biases(trained, words),
    )
    return Fit(network, nodes.tolist(), log_ratio - strength[node] * unseen)


def correction_rows(family: str, gpu: str, fit: Fit, source: str) -> list[dict]:
    """Return a fit as ``eta_coefficients`` rows, one a number: weights and biases in float16, the rest in float32."""
    rows = []
    for name, values in as_stored(fit.network)._asdict().items():
        for number, array in enumerate(values if name in BY_NODE else [values]):
            engine, implementation, dtype = fit.nodes[number].split("|") if name in BY_NODE else (None, None, None)
            rows += [
                {
                    "family": family, "part": "correction", "level": "gpu", "gpu": gpu, "engine": engine,
                    "implementation": implementation, "dtype": dtype, "coefficient": name, "position": position,
                    "value": float(value), "unit": "1", "source": source,
                }
                for position, value in enumerate(np.ravel(array))
            ]  # fmt: skip
    return rows


def as_stored(network: Network) -> Network:
    """Return the network in the precision that a pack stores: float16, and float32 for the PRECISE arrays."""
    rounded = {
        name: np.asarray(values, dtype=np.float32 if name in PRECISE else np.float16).astype(float)
        for name, values in network._asdict().items()
    }
    return Network(**rounded)


def _kernel_indicators(nodes: np.ndarray) -> np.ndarray:
    """Return one-hot inputs (kernels, words) of each kernel's engine, implementation and dtype, and of the kernel."""
    labels = np.array([node.split("|") for node in nodes])
    shared = [labels[:, [column]] == np.unique(labels[:, column]) for column in range(3)]
    return np.concatenate([*shared, np.eye(len(nodes))], axis=1).astype(np.float32)


def _folds(sites: np.ndarray, folds: int, least_sites: int) -> np.ndarray:
    """Return the fold of each row, by its site, or with too few sites by row; with too few rows -1 for all."""
    groups, group_of_row = np.unique(sites, return_inverse=True)
    if groups.size < least_sites:
        groups, group_of_row = np.arange(sites.size), np.arange(sites.size)
        if groups.size < 2 * folds:
            return np.full(sites.size, -1)
    return np.random.default_rng(0).permutation(groups.size)[group_of_row] % min(folds, groups.size)


def _strength(log_ratio: np.ndarray, unseen: np.ndarray) -> float:
    """Return the share of a kernel's correction to apply: 1 where it lowers the error at unseen sites, else the best.

    At least a half: the applied network has seen all sites, and does better than a teacher without some of them.
    """
    shares = np.array([0.0, *np.linspace(0.5, 1.0, 6)])
    errors = [np.abs(log_ratio - share * unseen).mean() for share in shares]
    return 1.0 if errors[-1] <= errors[0] else float(shares[1 + np.argmin(errors[1:])])


def _between(inputs: np.ndarray, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return random points, one per row, between that row and another of its kernel, and their nodes."""
    random = np.random.default_rng(0)
    order = np.lexsort((random.random(node.size), node))
    other = np.empty(node.size, dtype=int)
    other[order] = np.roll(order, 1)
    share = random.random((node.size, 1)).astype(np.float32) * (node == node[other])[:, None]
    return inputs + share * (inputs[other] - inputs), node


def _nodes_of_others(kernels: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Return the node of each row of another GPU: its kernel's; rows of kernels without one take the nodes in turn."""
    node_number = {node: number for number, node in enumerate(nodes.tolist())}
    return np.array(
        [node_number.get(kernel, row % nodes.size) for row, kernel in enumerate(kernels.tolist())], dtype=int
    )


def _with_node_biases(student: Any, words: np.ndarray) -> dict[str, np.ndarray]:
    """Return the layers of a trained network as arrays of Network, the one-hot inputs turned into biases per node."""
    (first, bias), (second, second_bias), (last, last_bias), (direct,) = [
        tuple(np.asarray(array)[0].astype(float) for array in layer) for layer in student
    ]
    features = first.shape[0] - words.shape[1]
    return {
        "first": first[:features],
        "first_bias": bias.ravel() + words @ first[features:],
        "second": second,
        "second_bias": second_bias.ravel(),
        "last": last.ravel(),
        "last_bias": last_bias.ravel() + (words @ direct).ravel(),
    }


def _train(
    inputs: np.ndarray,
    words: np.ndarray,
    goals: np.ndarray,
    chosen: np.ndarray,
    steps: int,
    seed: int,
    start: Any = None,
    widths: tuple[int, int] | None = None,
) -> Any:
    """Train one network per member and return them.

    ``inputs``: (rows, F); ``words``: (rows, W), one-hot; ``goals``: (members, rows); ``chosen``: (members, rows), the
    weights by which rows are drawn; ``start``: trained networks to continue from.
    """
    random = np.random.default_rng(seed)
    members = goals.shape[0]
    first = start or _untrained(random, members, inputs.shape[1], words.shape[1], widths or WIDTHS)
    # by inverse transform sampling: the drawn rows do not depend on a compiler
    cumulative = np.cumsum(chosen, axis=1)
    level = random.random((steps, members, BATCH)) * cumulative[:, -1][:, None]
    draws = np.stack([np.searchsorted(cumulative[m], level[:, m], side="right") for m in range(members)], axis=1)
    draws = np.minimum(draws, inputs.shape[0] - 1).astype(np.int32)
    rows = max(bucket(inputs.shape[0]), LEAST_ROWS)
    table = tuple(padded(values, rows) for values in (inputs, words, goals.T.astype(np.float32)))
    run = _compiled_training()
    state = (first, _without_moments(first))
    for start in range(0, steps, CALL_STEPS):
        drawn = draws[start : start + CALL_STEPS]
        state = run(state, padded(drawn, CALL_STEPS), np.int32(drawn.shape[0]), np.int32(steps), *table)
    return state[0]


def _untrained(
    random: np.random.Generator, members: int, features: int, words: int, widths: tuple[int, int]
) -> list[tuple]:
    shapes = ((features + words, widths[0]), widths, (widths[1], 1))
    layers = [
        (
            (random.standard_normal((members, *shape)) / math.sqrt(shape[0])).astype(np.float32),
            np.zeros((members, 1, shape[1]), np.float32),
        )
        for shape in shapes
    ]
    return [*layers, (np.zeros((members, words, 1), np.float32),)]


@cache
def _compiled_training() -> Any:
    """Return a compiled loop of at most CALL_STEPS steps: AdamW under a one-cycle learning rate.

    A function of the state (members, moments), the rows drawn of each step, (CALL_STEPS, members, BATCH), how many of
    these steps to take and how many there are in all, and the inputs, words and goals of each row.
    """
    import jax
    import jax.numpy as jnp
    import optax

    def loss(members: Any, inputs: Any, words: Any, goals: Any) -> Any:
        # smooth absolute error, which the median minimises, quadratic within the noise
        return jnp.mean(jnp.sqrt((_net(members, inputs, words) - goals) ** 2 + NOISE**2))

    def run(state: Any, draws: Any, count: Any, steps: Any, inputs: Any, words: Any, goals: Any) -> Any:
        optimiser = _optimiser(steps)

        def step(number: Any, state: Any) -> Any:
            members, moments = state
            drawn = draws[number]
            drawn_goals = jnp.take_along_axis(goals.T, drawn, axis=1)
            gradient = jax.grad(loss)(members, inputs[drawn], words[drawn], drawn_goals)
            updates, moments = optimiser.update(gradient, moments, members)
            return optax.apply_updates(members, updates), moments

        return jax.lax.fori_loop(0, count, step, state)

    return jax.jit(run)


def _optimiser(steps: Any) -> Any:
    """Return AdamW under the learning rate of a training of ``steps`` steps."""
    import optax

    return optax.adamw(lambda step: _learning_rate(step, steps), weight_decay=DECAY)


def _learning_rate(step: Any, steps: Any) -> Any:
    """Return the rate of each step, of one cycle of cosines (Smith and Topin 2019, arXiv 1708.07120)."""
    import jax.numpy as jnp

    highest = jnp.int32(WARM_UP * steps)

    def cosine(start: float, end: float, share: Any) -> Any:
        return end + (start - end) / 2.0 * (jnp.cos(jnp.pi * share) + 1.0)

    rising = cosine(FIRST_SHARE, 1.0, step / jnp.maximum(highest, 1))
    falling = cosine(1.0, LAST_SHARE, (step - highest) / (steps - highest))
    return LEARNING_RATE * jnp.where(step < highest, rising, falling)


def _without_moments(members: Any) -> Any:
    """Return the optimiser's state before the first step, whose numbers are all zero."""
    import jax

    shapes = jax.eval_shape(lambda members: _optimiser(1).init(members), members)
    return jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), shapes)


def _outputs(members: Any, inputs: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the outputs of networks, shape (members, rows)."""
    rows = max(bucket(inputs.shape[0]), LEAST_ROWS)
    return np.asarray(_compiled_net()(members, padded(inputs, rows), padded(words, rows)))[:, : inputs.shape[0]]


@cache
def _compiled_net() -> Any:
    import jax

    return jax.jit(_net)


def _net(members: Any, inputs: Any, words: Any) -> Any:
    import jax.numpy as jnp

    (first, first_bias), (second, second_bias), (last, last_bias), (direct,) = members
    hidden = jnp.tanh(jnp.concatenate([inputs, words], axis=-1) @ first + first_bias)
    hidden = jnp.tanh(hidden @ second + second_bias)
    return (hidden @ last + last_bias + words @ direct)[..., 0]
