"""The correction of a measured GPU: a small network that explains what the physics leaves of its sweep, log-wise.

latency = head x exp(delta), |delta| <= ln 2; delta = fade x ln 2 x tanh(net / ln 2), where net is two tanh layers over
:mod:`kernelsight.eta.features` with a bias of its own for each kernel (engine, implementation, dtype). Features are held
inside the range of the sweep, and delta fades to nothing with the octaves that a call lies outside it.

How it is fitted: several wider teachers see the target's sites and the whole sweeps of other GPUs, each without one
fold of the target's sites; the network that ships learns their mean (distillation, Hinton et al. 2015, arXiv
1503.02531). What each teacher makes of the fold it has not seen is the error to expect at a site that was not measured
(cross-validation+, Barber et al. 2021, arXiv 1905.02928), free of a further fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

MOST = math.log(2.0)
# octaves outside the measured range at which a correction has lost half of its effect
FADE_OCTAVES = 1.0
TEACHERS, TEACHER_WIDTH, STUDENT_WIDTH = 5, 64, 40
TEACHER_STEPS, STUDENT_STEPS, BATCH = 4000, 6000, 512
# rows of the target count as several of another GPU
OWN_ROWS = 3
LEARNING_RATE, DECAY = 5e-3, 1e-3
# log error below which rows do not differ: their noise
NOISE = 0.03


class Network(NamedTuple):
    """The numbers of one correction; F features, H hidden units, N kernels (nodes)."""

    low: Any  # (F,) range of the sweep, in units of the features
    high: Any  # (F,)
    matter: Any  # (F,) 1: counts for how far a call lies from the sweep
    first: Any  # (F, H)
    first_bias: Any  # (N, H)
    second: Any  # (H, H)
    second_bias: Any  # (H,)
    last: Any  # (H,)
    last_bias: Any  # (N,)


class Fit(NamedTuple):
    """A fitted network, its kernels in the order of their nodes, and each own row's error at a site not seen."""

    network: Network
    nodes: list[str]
    unseen_error: np.ndarray


def correction(xp: Any, features: Any, node: Any, network: Network) -> Any:
    """Return delta, the logarithm of the factor upon the head's latency; 0 where ``node`` is -1 (no sweep ran it).

    ``features``: (rows, F); ``node``: int, one a row or one for all.
    """
    held = xp.clip(features, network.low, network.high)
    octaves = (xp.abs(features - held) * network.matter).max(axis=1)
    hidden = xp.tanh(held @ network.first + network.first_bias[node])
    hidden = xp.tanh(hidden @ network.second + network.second_bias)
    net = hidden @ network.last + network.last_bias[node]
    fade = 1.0 / (1.0 + (octaves / FADE_OCTAVES) ** 2)
    return xp.where(node >= 0, fade * MOST * xp.tanh(net / MOST), 0.0)


def fit_correction(
    features: np.ndarray,
    log_ratio: np.ndarray,
    kernels: Sequence[str],
    gpus: Sequence[str],
    target: str,
    sites: np.ndarray,
    matter: np.ndarray,
) -> Fit:
    """Fit the correction of ``target`` to log(measured / head) of its own rows and of other GPUs'. Deterministic.

    ``features``: (rows, F); ``kernels``, ``gpus``: words of each row; ``sites``: number of each row's site, held out
    together; ``matter``: (F,), see :class:`Network`.
    """
    own = np.asarray(gpus) == target
    nodes, kernel = np.unique(np.asarray(kernels), return_inverse=True)
    gpu_names, gpu = np.unique(np.asarray(gpus), return_inverse=True)
    of_kernel, of_gpu = _words(nodes), np.eye(len(gpu_names))
    centre, scale = features[own].mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
    inputs = ((features - centre) / scale).astype(np.float32)
    goal = np.clip(log_ratio, -2.0 * MOST, 2.0 * MOST).astype(np.float32)
    words = np.concatenate([of_kernel[kernel], of_gpu[gpu]], axis=1).astype(np.float32)
    fold = _folds(sites, own, TEACHERS)
    weight = np.where(own, float(OWN_ROWS), 1.0)
    chosen = np.stack([weight * (fold != member) for member in range(TEACHERS)])
    steps = _steps(TEACHER_STEPS, features.shape[0])
    teachers = _train(inputs, words, np.tile(goal, (TEACHERS, 1)), chosen, TEACHER_WIDTH, steps, seed=0)
    answers = _answers(teachers, inputs[own], words[own])
    fold_own = fold[own]
    unseen = np.where(fold_own >= 0, answers[np.maximum(fold_own, 0), np.arange(own.sum())], answers.mean(axis=0))
    inside, between = _between(inputs[own], words[own])
    lessons = _answers(teachers, inside, between).mean(axis=0)
    steps = _steps(STUDENT_STEPS, features.shape[0])
    student = _train(inside, between, lessons[None], np.ones((1, len(inside))), STUDENT_WIDTH, steps, seed=1)
    mine = np.unique(kernel[own])
    here = np.tile(of_gpu[gpu_names == target], (mine.size, 1))
    network = _folded(student, centre, scale, np.concatenate([of_kernel[mine], here], axis=1), features, matter)
    bounded = MOST * np.tanh(unseen / MOST)
    return Fit(network, nodes[mine].tolist(), log_ratio[own] - bounded)


def correction_rows(family: str, gpu: str, fit: Fit, source: str) -> list[dict]:
    """Return a fit as ``eta_coefficients`` rows: every number of the network, rounded to 11 bits as float16 holds them."""
    rows = []
    for name, values in fit.network._asdict().items():
        values = np.asarray(values, dtype=np.float16).astype(float)
        by_node = name in ("first_bias", "last_bias")
        for number, part in enumerate(values if by_node else [values]):
            engine, implementation, dtype = fit.nodes[number].split("|") if by_node else (None, None, None)
            rows += [
                {
                    "family": family, "part": "correction", "level": "gpu", "gpu": gpu, "engine": engine,
                    "implementation": implementation, "dtype": dtype, "coefficient": name, "position": position,
                    "value": float(value), "unit": "1", "source": source,
                }
                for position, value in enumerate(np.ravel(part))
            ]  # fmt: skip
    return rows


def network_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Network, list[str]]:
    """Return the network that the correction rows of one (family, GPU) hold, and its kernels as engine|implementation|dtype."""
    parts: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        kernel = "|".join(row[name] or "" for name in ("engine", "implementation", "dtype"))
        parts.setdefault((row["coefficient"], kernel), []).append((row["position"], row["value"]))
    arrays = {key: np.array([value for _, value in sorted(found)]) for key, found in parts.items()}
    nodes = sorted(kernel for name, kernel in arrays if name == "last_bias")
    whole = {name: values for (name, kernel), values in arrays.items() if kernel == "||"}
    hidden = whole["second_bias"].size
    whole["first"] = whole["first"].reshape(-1, hidden)
    whole["second"] = whole["second"].reshape(hidden, hidden)
    whole["first_bias"] = np.stack([arrays["first_bias", kernel] for kernel in nodes])
    whole["last_bias"] = np.concatenate([arrays["last_bias", kernel] for kernel in nodes])
    return Network(**whole), nodes


def _words(nodes: np.ndarray) -> np.ndarray:
    """Return (kernels, words): 1 for the engine, the implementation, the dtype of a kernel, and for itself."""
    parts = np.array([node.split("|") for node in nodes])
    return np.concatenate([parts[:, [at]] == np.unique(parts[:, at]) for at in range(3)] + [np.eye(len(nodes))], axis=1)


def _folds(sites: np.ndarray, own: np.ndarray, folds: int) -> np.ndarray:
    """Number the fold of each own row's site; -1 for rows of other GPUs, and for all where sites are too few to spare."""
    fold = np.full(own.size, -1)
    _, numbered = np.unique(sites[own], return_inverse=True)
    if numbered.size and numbered.max() + 1 >= 2 * folds:
        fold[own] = np.random.default_rng(0).permutation(numbered.max() + 1)[numbered] % folds
    return fold


def _between(inputs: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and as many points on the lines between pairs of rows of one kernel: where a student asks its teachers."""
    random = np.random.default_rng(0)
    _, alike = np.unique(words, axis=0, return_inverse=True)
    order = np.lexsort((random.random(len(words)), alike.ravel()))
    other = np.empty(len(words), dtype=int)
    other[order] = np.roll(order, 1)
    other = np.where((words == words[other]).all(axis=1), other, np.arange(len(words)))
    share = random.random((len(words), 1)).astype(np.float32)
    return np.concatenate([inputs, inputs + share * (inputs[other] - inputs)]), np.concatenate([words, words])


def _folded(
    student: list, centre: np.ndarray, scale: np.ndarray, words: np.ndarray, seen: np.ndarray, matter: np.ndarray
) -> Network:
    """Fold the scaling of the features, and the words of each node, into the first layer and the biases."""
    (first, bias), (second, second_bias), (last, last_bias), direct = [
        tuple(np.asarray(part[0], dtype=float) for part in pair) for pair in student
    ]
    features = centre.size
    kernel_bias = bias.ravel() + words @ first[features:] - (centre / scale) @ first[:features]
    return Network(
        seen.min(axis=0), seen.max(axis=0), np.asarray(matter, dtype=float),
        first[:features] / scale[:, None], kernel_bias, second, second_bias.ravel(),
        last.ravel(), last_bias.ravel() + (words @ direct[0]).ravel(),
    )  # fmt: skip


def _steps(most: int, rows: int) -> int:
    """Steps of a training: few rows need fewer."""
    return int(np.clip(most * rows / 20_000, most / 4, most))


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


def _train(
    inputs: np.ndarray, words: np.ndarray, goals: np.ndarray, chosen: np.ndarray, width: int, steps: int, seed: int
) -> Any:
    """Train one network a row of ``goals`` (members, rows), drawing rows in proportion to ``chosen``; return them."""
    import jax
    import jax.numpy as jnp

    members, features = goals.shape[0], inputs.shape[1] + words.shape[1]
    keys = jax.random.split(jax.random.key(seed), 3)

    def layer(key: Any, ins: int, outs: int) -> tuple:
        return jax.random.normal(key, (members, ins, outs)) / math.sqrt(ins), jnp.zeros((members, 1, outs))

    start = [
        layer(keys[0], features, width), layer(keys[1], width, width), layer(keys[2], width, 1),
        (jnp.zeros((members, words.shape[1], 1)),),
    ]  # fmt: skip
    # rows of each step, drawn beforehand by inverse transform: the same for equal data
    ladder = np.cumsum(chosen, axis=1)
    random = np.random.default_rng(seed).random((steps, members, BATCH))
    draws = np.stack([np.searchsorted(ladder[m], random[:, m] * ladder[m, -1]) for m in range(members)], axis=1)
    draws = np.minimum(draws, inputs.shape[0] - 1).astype(np.int32)
    return _compiled_training(steps)(start, draws, inputs, words, goals)


@cache
def _compiled_training(steps: int) -> Any:
    import jax
    import jax.numpy as jnp
    import optax

    optimiser = optax.adamw(optax.cosine_onecycle_schedule(steps, LEARNING_RATE, 0.1), weight_decay=DECAY)

    def loss(members: Any, inputs: Any, words: Any, goals: Any) -> Any:
        # smooth absolute error: what the median of the relative error asks for, rounded off within the noise
        return jnp.mean(jnp.sqrt((_net(members, inputs, words) - goals) ** 2 + NOISE**2)) * goals.shape[0]

    def run(members: Any, draws: Any, inputs: Any, words: Any, goals: Any) -> Any:
        def step(state: Any, drawn: Any) -> Any:
            members, memory = state
            picked = jnp.take_along_axis(goals, drawn, axis=1)
            slopes = jax.grad(loss)(members, inputs[drawn], words[drawn], picked)
            change, memory = optimiser.update(slopes, memory, members)
            return (optax.apply_updates(members, change), memory), None

        return jax.lax.scan(step, (members, optimiser.init(members)), draws)[0][0]

    return jax.jit(run)
