"""Collects the loop's step rows, buffer by buffer: keeps them, or sums them in windows of time, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernelsight.serving.engine.records import FINISHED
from kernelsight.serving.engine.served import Outcome, Windows
from kernelsight.serving.engine.steps import COLUMNS, END, RUNNING, START, WAITING
from kernelsight.serving.engine.windows import NARROWEST_US, add_steps, fresh, windows_of

# size of the buffer, step rows of all engines
CHUNK = 16_384
# least size of one engine's buffer
LEAST_CHUNK = 1024


class StepRows:
    """The step rows of a scenario's engines.

    ``stages``: pipeline stages of each engine, whose steps overlap. ``per_request_progress``: of each engine, which
    then counts waiting requests itself. ``keep``: return all rows. ``windows_from_us``: start of the first
    window of time; None: no windows.
    """

    def __init__(
        self, stages: Sequence[int], per_request_progress: Sequence[bool], keep: bool, windows_from_us: float | None
    ) -> None:
        self.stages, self.per_request_progress = stages, per_request_progress
        self.keep, self.from_us = keep, windows_from_us
        self.wanted = keep or windows_from_us is not None
        size = max(CHUNK // len(stages), LEAST_CHUNK, *stages) if self.wanted else 0
        self.buffer = np.zeros((len(stages), size, COLUMNS))  # the loop fills it
        self.kept: list[list[np.ndarray]] = [[] for _ in stages]
        self.last = [self.buffer[0, :0] for _ in stages]
        self.sums, self.widths_us = [fresh() for _ in stages], [NARROWEST_US] * len(stages)

    def take(self, engines: np.ndarray) -> None:
        """Collect the rows that the engines have written, and free the buffer."""
        for i, engine in enumerate(engines):
            rows = self.buffer[i, : engine["rows"]]
            if self.keep:
                self.kept[i].append(rows.copy())
            if self.from_us is not None:
                if self.stages[i] > 1:
                    rows, self.last[i] = one_after_another(np.concatenate([self.last[i], rows]))
                self.add(i, rows)
        engines["rows"] = 0

    def add(self, i: int, rows: np.ndarray) -> None:
        """Add rows that do not overlap to an engine's windows."""
        self.widths_us[i] = add_steps(rows, *self.sums[i], self.from_us, self.widths_us[i])

    def finish(
        self, engines: np.ndarray, stays_on_engine: Callable[[int], tuple[np.ndarray, np.ndarray]]
    ) -> tuple[list[np.ndarray], list[Windows] | None]:
        """Return the rows of each engine, with its waiting requests, and its windows.

        ``stays_on_engine``: function that returns when an engine's accepted requests arrived and left (``stays_on``).
        """
        steps, windows = [np.concatenate(chunks) if chunks else self.buffer[0, :0] for chunks in self.kept], []
        for i in range(len(self.stages) if self.wanted else 0):
            stays = stays_on_engine(i)
            if self.keep and not self.per_request_progress[i]:
                steps[i][:, WAITING] = in_flight_at(steps[i][:, START], *stays) - steps[i][:, RUNNING]
            if self.from_us is not None:
                self.add(i, self.last[i])
                last_us = engines["last_us"][i]
                windows.append(windows_of(*self.sums[i], self.from_us, self.widths_us[i], last_us, *stays))
        return steps, windows or None


def one_after_another(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows that end where the next one starts at the latest; the last row, whose next one is not known)."""
    cut = rows.copy()
    cut[:-1, END] = np.minimum(rows[:-1, END], rows[1:, START])
    return cut[:-1], cut[-1:]


def stays_on(engine: int, engines: int, out: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """Return when the accepted requests of an engine arrived there and when they left it, us; each in any order."""
    accepted = out.status == FINISHED
    if engines == 1 and accepted.all():
        return out.sent_us, out.finish_us
    if engines == 1:
        return out.sent_us[accepted], out.finish_us[accepted]
    ended_here, prefilled_here = out.of(accepted & (out.replica == engine)), out.of(out.prefill_replica == engine)
    arrived_us = np.where(ended_here.received_us >= 0.0, ended_here.received_us, ended_here.sent_us)
    # a request leaves a prefill engine with its first token
    left_us = np.concatenate([ended_here.finish_us, prefilled_here.first_token_us])
    return np.concatenate([arrived_us, prefilled_here.sent_us]), left_us


def in_flight_at(moments_us: np.ndarray, came_us: np.ndarray, left_us: np.ndarray) -> np.ndarray:
    """Return the number of requests in flight at each moment, shape [moments]."""
    arrivals_us, departures_us = np.sort(came_us, kind="stable"), np.sort(left_us, kind="stable")
    return np.searchsorted(arrivals_us, moments_us, side="right") - np.searchsorted(
        departures_us, moments_us, side="right"
    )
