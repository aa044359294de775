"""The correction of a measured GPU: a small network that explains what the physics leaves of its sweep, log-wise.

latency = expression x exp(delta), delta = strength x fade x net, |net| <= ln 4, where net is two tanh layers over
:mod:`kernelsight.kernels.features` with a bias of its own for each kernel (engine, implementation, dtype). Features are
held inside the range of the sweep, and delta fades with the octaves that a call lies outside it.

How it is fitted: teachers learn the GPU's rows, each without one fold of its sites. What each makes of the fold it has
not seen is the error to expect at a site that was not measured (cross-validation+, Barber et al. 2021, arXiv
1905.02928); where that is no better than the expression alone, the kernel's strength shrinks its correction. Then they
see all rows, and the network that ships learns their mean (distillation, Hinton et al. 2015, arXiv 1503.02531) at the
measured shapes, between them, and at the shapes that other GPUs measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from kernelsight.kernels.network import BY_NODE, MOST, Network

TEACHERS, FOLD_STEPS, TEACHER_STEPS = 4, 4000, 5000
# hidden units of a teacher's two layers, rows of a step
WIDTHS, BATCH = (64, 64), 512
LEARNING_RATE, DECAY = 5e-3, 1e-3
# log error below which rows do not differ: their noise
NOISE = 0.03
# rows at which a training takes that many steps; fewer rows need fewer, more rows more
STEPS_ROWS, LEAST_STEPS, MOST_STEPS = 8000, 0.25, 2.0
# numbers in units of the features, which are large beside what they differ by
PRECISE = ("low", "high", "centre", "scale")


class Student(NamedTuple):
    """The network that ships: hidden units of its two layers, and steps of its training."""

    widths: tuple[int, int] = (64, 64)
    steps: int = 12_000


WIDE = Student()


class Fit(NamedTuple):
    """A network, its kernels in the order of their nodes, and each own row's log error as if its site were unseen."""

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

    ``features``: (rows, F); ``kernels``: "engine|implementation|dtype" and ``gpus``: GPU of each row, of which those of
    other GPUs lend their shapes alone; ``sites``: number of each row's site, held out together; ``matter``: (F,), see
    :class:`Network`; ``effort``: steps at most, in units of those of STEPS_ROWS rows; ``student``: what ships;
    ``least_sites``: where there are fewer, rows are held out instead.
    ``unseen_error`` has the rows of ``target``.
    """
    own = np.asarray(gpus) == target
    kernels, other_features = np.asarray(kernels), features[~own]
    nodes, node = np.unique(kernels[own], return_inverse=True)
    features, log_ratio, fold = features[own], log_ratio[own], _folds(sites[own], TEACHERS, least_sites)
    centre, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
    inputs, words = ((features - centre) / scale).astype(np.float32), _words(nodes)
    share = float(np.clip(math.sqrt(inputs.shape[0] / STEPS_ROWS), min(LEAST_STEPS, effort), effort))
    goals = np.tile(np.clip(log_ratio, -MOST, MOST), (TEACHERS, 1))
    chosen = np.stack([fold != member for member in range(TEACHERS)]).astype(float)
    teachers = _train(inputs, words[node], goals, chosen, int(FOLD_STEPS * share), seed=0)
    answers = np.clip(_answers(teachers, inputs, words[node]), -MOST, MOST)
    unseen = np.where(fold >= 0, answers[fold, np.arange(fold.size)], 0.0)
    strength = np.array([_strength(log_ratio[node == at], unseen[node == at]) for at in range(nodes.size)])
    teachers = _train(inputs, words[node], goals, np.ones_like(chosen), int(TEACHER_STEPS * share), 1, teachers)
    inside, inside_node = _between(inputs, node)
    lent = _lent_nodes(kernels[~own], nodes)
    others = ((other_features - centre) / scale).astype(np.float32)
    asked = np.concatenate([inputs, inside, np.clip(others, -4.0, 4.0)])
    asked_words = words[np.concatenate([node, inside_node, lent])]
    lessons = _answers(teachers, asked, asked_words).mean(axis=0)[None]
    learnt = _train(
        asked, asked_words, lessons, np.ones_like(lessons), int(student.steps * share), seed=2, widths=student.widths
    )
    network = Network(
        low=features.min(axis=0),
        high=features.max(axis=0),
        matter=np.asarray(matter, dtype=float),
        centre=centre,
        scale=scale,
        strength=strength,
        **_folded(learnt, words),
    )
    return Fit(network, nodes.tolist(), log_ratio - strength[node] * unseen)


def correction_rows(family: str, gpu: str, fit: Fit, source: str) -> list[dict]:
    """Return a fit as ``eta_coefficients`` rows: weights and biases with the 11 bits of a float16, the rest with 24."""
    rows = []
    for name, values in as_stored(fit.network)._asdict().items():
        for number, part in enumerate(values if name in BY_NODE else [values]):
            engine, implementation, dtype = fit.nodes[number].split("|") if name in BY_NODE else (None, None, None)
            rows += [
                {
                    "family": family, "part": "correction", "level": "gpu", "gpu": gpu, "engine": engine,
                    "implementation": implementation, "dtype": dtype, "coefficient": name, "position": position,
                    "value": float(value), "unit": "1", "source": source,
                }
                for position, value in enumerate(np.ravel(part))
            ]  # fmt: skip
    return rows


def as_stored(network: Network) -> Network:
    """Return the network with the digits that a pack keeps."""
    kept = {
        name: np.asarray(values, dtype=np.float32 if name in PRECISE else np.float16).astype(float)
        for name, values in network._asdict().items()
    }
    return Network(**kept)


def _words(nodes: np.ndarray) -> np.ndarray:
    """Return (kernels, words): 1 for the engine, the implementation and the dtype of a kernel, and for itself."""
    parts = np.array([node.split("|") for node in nodes])
    shared = [parts[:, [at]] == np.unique(parts[:, at]) for at in range(3)]
    return np.concatenate([*shared, np.eye(len(nodes))], axis=1).astype(np.float32)


def _folds(sites: np.ndarray, folds: int, least_sites: int) -> np.ndarray:
    """Number the fold of each row's site, of each row where sites are too few; -1 for all where rows are, too."""
    numbers, numbered = np.unique(sites, return_inverse=True)
    if numbers.size < least_sites:
        numbers, numbered = np.arange(sites.size), np.arange(sites.size)
        if numbers.size < 2 * folds:
            return np.full(sites.size, -1)
    return np.random.default_rng(0).permutation(numbers.size)[numbered] % min(folds, numbers.size)


def _strength(log_ratio: np.ndarray, unseen: np.ndarray) -> float:
    """Share of a correction that is applied: all where it helps at sites that it has not seen, else what helps most.

    At least a half: what is applied has seen all sites, and does better than a fold without some of them.
    """
    shares = np.array([0.0, *np.linspace(0.5, 1.0, 6)])
    errors = [np.abs(log_ratio - share * unseen).mean() for share in shares]
    return 1.0 if errors[-1] <= errors[0] else float(shares[1 + np.argmin(errors[1:])])


def _between(inputs: np.ndarray, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return as many points as rows, each between two rows of one kernel, and their nodes."""
    random = np.random.default_rng(0)
    order = np.lexsort((random.random(node.size), node))
    other = np.empty(node.size, dtype=int)
    other[order] = np.roll(order, 1)
    share = random.random((node.size, 1)).astype(np.float32) * (node == node[other])[:, None]
    return inputs + share * (inputs[other] - inputs), node


def _lent_nodes(kernels: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Return the node of each shape that another GPU measured: its kernel's, or where there is none, any in turn."""
    node_number = {node: number for number, node in enumerate(nodes.tolist())}
    return np.array(
        [node_number.get(kernel, row % nodes.size) for row, kernel in enumerate(kernels.tolist())], dtype=int
    )


def _folded(student: Any, words: np.ndarray) -> dict[str, np.ndarray]:
    """Return layers and biases, with the words of each node folded into its biases."""
    (first, bias), (second, second_bias), (last, last_bias), (direct,) = [
        tuple(np.asarray(part[0], dtype=float) for part in layer) for layer in student
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
    """Train one network a row of ``goals`` (members, rows), drawing rows in proportion to ``chosen``; return them."""
    random = np.random.default_rng(seed)
    members = goals.shape[0]
    first = start or _untrained(random, members, inputs.shape[1], words.shape[1], widths or WIDTHS)
    # by inverse transform: which row each step reads does not hang on a compiler
    ladder = np.cumsum(chosen, axis=1)
    level = random.random((steps, members, BATCH)) * ladder[:, -1][:, None]
    draws = np.stack([np.searchsorted(ladder[m], level[:, m], side="right") for m in range(members)], axis=1)
    draws = np.minimum(draws, inputs.shape[0] - 1).astype(np.int32)
    return _compiled_training(steps)(first, draws, inputs, words, goals.astype(np.float32))


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
def _compiled_training(steps: int) -> Any:
    """Return the compiled training of that many steps: AdamW under one cycle of the learning rate."""
    import jax
    import jax.numpy as jnp
    import optax

    optimiser = optax.adamw(optax.cosine_onecycle_schedule(steps, LEARNING_RATE, 0.1), weight_decay=DECAY)

    def loss(members: Any, inputs: Any, words: Any, goals: Any) -> Any:
        # smooth absolute error: what the median of the relative error asks for, rounded off within the noise
        return jnp.mean(jnp.sqrt((_net(members, inputs, words) - goals) ** 2 + NOISE**2))

    def run(members: Any, draws: Any, inputs: Any, words: Any, goals: Any) -> Any:
        def step(state: Any, drawn: Any) -> Any:
            members, memory = state
            picked = jnp.take_along_axis(goals, drawn, axis=1)
            slopes = jax.grad(loss)(members, inputs[drawn], words[drawn], picked)
            change, memory = optimiser.update(slopes, memory, members)
            return (optax.apply_updates(members, change), memory), None

        return jax.lax.scan(step, (members, optimiser.init(members)), draws)[0][0]

    return jax.jit(run)


def _answers(members: Any, inputs: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return (members, rows)."""
    return np.asarray(_compiled_answers()(members, inputs, words))


@cache
def _compiled_answers() -> Any:
    import jax

    return jax.jit(_net)


def _net(members: Any, inputs: Any, words: Any) -> Any:
    import jax.numpy as jnp

    (first, first_bias), (second, second_bias), (last, last_bias), (direct,) = members
    hidden = jnp.tanh(jnp.concatenate([inputs, words], axis=-1) @ first + first_bias)
    hidden = jnp.tanh(hidden @ second + second_bias)
    return (hidden @ last + last_bias + words @ direct)[..., 0]
