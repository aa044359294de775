"""Step time of an engine as a function of the batch: the step costs that a simulation reads, without a simulation.

``deploy`` makes what it reads of a deployment without a load: its engine, its settings, and step costs up to the
engine's own limits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import LruCache
from kernelsight.errors import InvalidInput
from kernelsight.escape import visible
from kernelsight.kernels.energy import held
from kernelsight.scenario.refusals import refuse_faults
from kernelsight.scenario.scenario_rows import deployment_rows, gpu_assumptions, normalise, prefill_flags, resolve_names
from kernelsight.serving.engine.many_scenarios import NO_HASHES
from kernelsight.serving.engine.packed_costs import layouts_by_adapters
from kernelsight.serving.engine.records import ENGINE, REQUEST
from kernelsight.serving.engine.replica import Pool, host_records, limit_records
from kernelsight.serving.engine.step_times import (
    EMPTY,
    FITS,
    NEGATIVE,
    TOO_MANY_SEQUENCES,
    TOO_MANY_TOKENS,
    time_steps,
)
from kernelsight.serving.runs.pools import cost_tables
from kernelsight.serving.runs.shared_prefixes import shares_prefixes
from kernelsight.serving.runs.simulation_inputs import SimulationInputs, by_key, laid_out, pool_of

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.serving.engine.limits import Limits


class Deployed(NamedTuple):
    """A deployment that can run, with what the scheduler's loop needs of it."""

    pool: Pool
    settings: dict[str, Any]  # its row of deployment_settings
    plan: dict[str, Any]  # of memory_plan
    host: dict[str, Any]  # of host_settings
    ends: tuple[np.ndarray, np.ndarray]  # packed step costs at p05 and p95
    power: dict[str, Any]  # its GPU's row of gpu_power
    assumed: list[str]  # a sentence for each assumption

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts that begin with the same tokens share KV blocks."""
        return shares_prefixes(self.settings, self.plan)


def deploy(session: Session, flags: Mapping[str, Any]) -> Deployed:
    """Return the deployment that ``flags`` describe; the session's tables stay as they are.

    InvalidInput: flags that contradict each other, a deployment that cannot run, or P/D disaggregation.
    """
    with session.fork() as fork:
        by_name = normalise(flags)
        assumed = gpu_assumptions(fork, by_name)
        by_name = resolve_names(fork, by_name)
        if prefill_flags(by_name) is not None:
            raise InvalidInput("P/D disaggregation is no single engine; remove prefill_replicas, or use simulate.")
        rows = deployment_rows(by_name)
        key = rows[0]["deployment_id"]
        fork.give("deployments", rows)
        refuse_faults(fork)
        costs, shapes, settings = (fork.table(name) for name in ("step_costs", "step_shapes", "deployment_settings"))
        models = fork.table("models")
        deployments = by_key(settings, "deployment_id")
        inputs = SimulationInputs(
            scenarios=[], requests=shapes, waits={}, columns={}, spans={}, deployments=deployments,
            plans=by_key(fork.table("memory_plan"), "deployment_id"),
            hosts=by_key(fork.table("host_settings"), "deployment_id"), links={}, tiers={},
            layers=dict(zip(models["model"].to_pylist(), models["layer_count"].to_pylist(), strict=True)),
            costs=laid_out(costs, shapes, settings, deployments, deployments), scorers={},
        )  # fmt: skip
        deployment_costs, deployment_shapes = (
            table.filter(pc.equal(table["deployment_id"], key)) for table in (costs, shapes)
        )
        ends = (
            cost_tables(_at_end(deployment_costs, f"gpu_{end}_us"), deployment_shapes, deployments[key]).packed.values
            for end in ("p05", "p95")
        )
        assumed += [row["sentence"] for row in fork.table("assumptions").to_pylist()]
        pool, deployment = pool_of(inputs, key), deployments[key]
        power = by_key(fork.table("gpu_power"), "gpu")[deployment["gpu"]]
        return Deployed(pool, deployment, inputs.plans[key], inputs.hosts[key], tuple(ends), power, assumed)


def _at_end(costs: pa.Table, column: str) -> pa.Table:
    """Return step costs with ``column``, an end of their interval, as their GPU time."""
    return costs.set_column(costs.column_names.index("gpu_us"), "gpu_us", costs[column])


LARGEST = 2.0**53  # float64 has every whole number up to here
NOT_WHOLE = "a batch has whole numbers of new_tokens and past_tokens for each sequence."
MOST_KNOWN = 16  # deployments whose step costs are cached, some megabytes each


class StepTime(NamedTuple):
    """Time of a step in us, its 90 % interval, and the energy of the deployment's GPUs; arrays for many batches."""

    latency_us: Any  # with exposed host time
    p05_us: Any
    p95_us: Any
    energy_j: Any  # NaN: unknown


class StepTimes:
    """The step times of one deployment; call it with a batch, or with arrays of many.

    >>> import kernelsight as ks
    >>> with ks.connect() as session:
    ...     times = session.step_times(model="qwen3-0.6b", gpu="l4")
    >>> decode = times([(1, 1024)] * 8)
    >>> decode.p05_us < decode.latency_us < times([(1, 1024)] * 8 + [(512, 0)]).latency_us
    True
    >>> times(([1, 1, 512], [100, 100, 0], [0, 2, 3])).latency_us.shape
    (2,)
    """

    def __init__(self, session: Session, flags: Mapping[str, Any]) -> None:
        deployed = deploy(session, flags)
        pool, settings = deployed.pool, deployed.settings
        if len(pool.layers) > 1 or pool.limits.drafts or pool.ranks > 1:
            which = "pipeline stages" if len(pool.layers) > 1 else "speculative decoding" if pool.limits.drafts else ""
            which = which or "data-parallel ranks that step together"
            raise InvalidInput(f"a step of a deployment with {which} has no time of its own; use simulate.")
        self.settings: dict[str, Any] = settings
        self.limits: Limits = pool.limits
        self._costs = np.stack([pool.costs.values, *deployed.ends])
        self._layouts = layouts_by_adapters(pool.costs.layout, pool.costs.surface)
        self._hosts = host_records(pool.host)
        self._level_of = limit_records([pool], NO_HASHES)[0]["level_of"][: 1 + pool.limits.max_loras].astype(np.int64)
        self._log_sd, self._power = deployed.host["step_log_sd"], deployed.power
        sequences = pool.costs.surface.sampled_us.size - 1
        self._most = min(pool.limits.max_num_seqs, sequences), pool.limits.max_num_batched_tokens
        self._engine, self._requests = np.zeros(1, ENGINE), np.zeros(self._most[0], REQUEST)
        self._uses = np.zeros((3, pool.costs.values.size))
        # of single batches, which a bound call reads
        self._new, self._past = np.zeros((2, self._most[0]), np.int64)
        self._ends, self._one = np.zeros(2, np.int64), np.zeros((4, 1))
        self._time_one = time_steps.bound(*self._arguments(self._new, self._past, self._ends, self._one))

    def __call__(self, batch: Any) -> StepTime:
        """Return the time of one step, or of many.

        ``batch``: (new tokens, past tokens) of each sequence; or three arrays: new tokens and past tokens of the
        sequences of all batches, and offsets (batch b has the sequences ``offsets[b]`` to ``offsets[b + 1]``). One new
        token after others decodes; any other sequence is a chunk that completes its prompt.
        InvalidInput: a batch that the engine could not run, and why.
        """
        if _are_arrays(batch):
            return self._of_arrays(*batch)
        try:
            flat = _whole(np.array([*itertools.chain.from_iterable(batch)]))
        except (TypeError, ValueError):
            raise InvalidInput(NOT_WHOLE) from None
        if flat.size % 2:
            raise InvalidInput("a batch has a pair of new_tokens and past_tokens for each sequence.")
        size = flat.size // 2
        if size > self._new.size:
            return self._of_arrays(flat[::2], flat[1::2], [0, size])  # which says what does not fit
        self._new[:size], self._past[:size], self._ends[1] = flat[::2], flat[1::2], size
        self._refuse(self._time_one())
        return self._timed(*self._one[:, 0].tolist())

    def _of_arrays(self, new: Any, past: Any, offsets: Any) -> StepTime:
        try:
            new, past, offsets = (_whole(np.asarray(each)) for each in (new, past, offsets))
        except (TypeError, ValueError):
            raise InvalidInput(NOT_WHOLE) from None
        if new.size != past.size or offsets.size < 1 or offsets[0] < 0 or offsets[-1] > new.size:
            raise InvalidInput(
                f"{new.size} new tokens, {past.size} past tokens and offsets do not go together; give an array of each "
                "sequence's new tokens, one of its past tokens, and offsets from 0 to their length."
            )
        if (np.diff(offsets) < 0).any():
            raise InvalidInput("the offsets of the batches fall; give them in order.")
        times = np.empty((4, offsets.size - 1))
        self._refuse(time_steps(*self._arguments(new, past, offsets, times)))
        return self._timed(*times)

    def _timed(self, middle_us: Any, fast_us: Any, slow_us: Any, work_j: Any) -> StepTime:
        """Return times with the energy of all GPUs; the power limit applies to the mean power of the step."""
        power, settings = self._power, self.settings
        cap_w = min(power["cap_w"], settings["power_limit_w"] or math.inf)
        free_w = power["idle_w"] + power["active_w"] + 1e6 * work_j / middle_us
        energy_j = settings["tp"] * held(free_w, cap_w, power["cap_sharpness"]) * middle_us / 1e6
        return StepTime(middle_us, fast_us, slow_us, energy_j)

    def _arguments(self, new: np.ndarray, past: np.ndarray, offsets: np.ndarray, times: np.ndarray) -> tuple:
        working_memory = (
            *(self._engine, self._requests, self._hosts, self._costs, self._layouts, self._level_of),
            self._uses,
        )
        limits = (self.limits.window_tokens, self._most[1], self._log_sd)
        return new, past, offsets, *working_memory, *limits, times

    def _refuse(self, fault: int) -> None:
        if fault != FITS:
            raise InvalidInput(self._sentence(fault % 8, fault // 8))

    def _sentence(self, kind: int, number: int) -> str:
        return (
            f"batch {number}: "
            + {
                EMPTY: "no sequence is in it; give (new_tokens, past_tokens) of each.",
                NEGATIVE: "a sequence needs at least 1 new token, and 0 or more past tokens.",
                TOO_MANY_TOKENS: f"more new tokens than max_num_batched_tokens {self._most[1]:,}; split it.",
                TOO_MANY_SEQUENCES: f"more sequences than max_num_seqs {self._most[0]:,}; split it.",
            }[kind]
        )

    def __repr__(self) -> str:
        return visible(f"StepTimes({self.settings['model']} on {self.settings['gpu']}, tp {self.settings['tp']})")


_known: LruCache[StepTimes] = LruCache(MOST_KNOWN)


def step_times_of(deployment: Mapping[str, Any] | StepTimes, connect: Callable[[], Session]) -> StepTimes:
    """Return the step times of a deployment, from its flags: prepared once in a session of their own, then cached."""
    if isinstance(deployment, StepTimes):
        return deployment
    try:
        key = frozenset(deployment.items())
    except (AttributeError, TypeError):
        raise InvalidInput(
            "the deployment is neither flags such as {'model': 'qwen3-32b', 'gpu': 'h100_sxm'} nor StepTimes."
        ) from None
    times = _known.get(key)
    if times is None:
        with connect() as session:
            times = StepTimes(session, deployment)
        _known.put(key, times)
    return times


def _whole(values: np.ndarray) -> np.ndarray:
    """Return numbers as int64, in one piece of memory. ValueError: one is not whole.

    >>> _whole(np.array([1.0, 8.0]))
    array([1, 8])
    """
    if values.dtype.kind in "iu":
        return np.ascontiguousarray(values, dtype=np.int64)
    numbers = np.asarray(values, np.float64)
    if not ((numbers == np.floor(numbers)) & (np.abs(numbers) <= LARGEST)).all():
        raise ValueError("a number is not whole")
    return numbers.astype(np.int64)


def _are_arrays(batch: Any) -> bool:
    """Whether a batch is three arrays and not (new, past) pairs.

    >>> _are_arrays(([1, 1], [9, 9], [0, 2])), _are_arrays([(1, 9), (1, 9), (1, 9)]), _are_arrays([])
    (True, False, False)
    """
    if not isinstance(batch, Sequence) or len(batch) != 3:
        return False
    return isinstance(batch[0], np.ndarray) or (isinstance(batch, tuple) and isinstance(batch[0], list))
