"""Step rows as the loop gives them, buffer by buffer: kept, and added up in windows of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelsight.serving.records import FINISHED
from kernelsight.serving.served import Windows
from kernelsight.serving.steps import COLUMNS, END, RUNNING, START, WAITING
from kernelsight.serving.windows import NARROWEST_US, add_steps, fresh, windows_of

# step rows that are held at once; most scenarios have few times as many
CHUNK = 16_384
# and of each engine at least
LEAST_CHUNK = 1024


class StepRows:
    """The step rows of a scenario's engines.

    ``stages``: pipeline stages of each engine; the steps of several overlap. ``one_by_one``: whether an engine counts
    those that wait itself. ``keep``: give all rows back.
    ``windows_from_us``: where windows of time begin; None: none are counted.
    """

    def __init__(
        self, stages: Sequence[int], one_by_one: Sequence[bool], keep: bool, windows_from_us: float | None
    ) -> None:
        self.stages, self.one_by_one = stages, one_by_one
        self.keep, self.from_us = keep, windows_from_us
        self.wanted = keep or windows_from_us is not None
        room = max(CHUNK // len(stages), LEAST_CHUNK, *stages) if self.wanted else 0
        self.buffer = np.zeros((len(stages), room, COLUMNS))  # the loop fills it
        self.kept: list[list[np.ndarray]] = [[] for _ in stages]
        self.last = [self.buffer[0, :0] for _ in stages]
        self.sums, self.widths_us = [fresh() for _ in stages], [NARROWEST_US] * len(stages)

    def take(self, engines: np.ndarray) -> None:
        """Take the rows that the engines have filled, so that they can fill them again."""
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

    def finish(self, engines: np.ndarray, requests: np.ndarray) -> tuple[list[np.ndarray], list[Windows] | None]:
        """Return the rows of each engine, with those that waited, and its windows."""
        steps, windows = [np.concatenate(each) if each else self.buffer[0, :0] for each in self.kept], []
        for i in range(len(self.stages) if self.wanted else 0):
            stays = stays_on(i, len(self.stages), requests)
            if self.keep and not self.one_by_one[i]:
                steps[i][:, WAITING] = in_flight_at(steps[i][:, START], *stays) - steps[i][:, RUNNING]
            if self.from_us is not None:
                self.add(i, self.last[i])
                last_us = engines["last_us"][i]
                windows.append(windows_of(*self.sums[i], self.from_us, self.widths_us[i], last_us, *stays))
        return steps, windows or None


def one_after_another(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows that end where the next one starts, at the latest; the last row, whose next one is not known)."""
    apart = rows.copy()
    apart[:-1, END] = np.minimum(rows[:-1, END], rows[1:, START])
    return apart[:-1], apart[-1:]


def stays_on(engine: int, engines: int, requests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return when the requests that an engine did not turn away came to it and left it, in no common order."""
    accepted = requests["status"] == FINISHED
    if engines == 1:
        return requests["sent_us"][accepted], requests["finish_us"][accepted]
    own = requests[accepted & (requests["replica"] == engine)]
    sent_on = requests[requests["prefill_replica"] == engine]
    came = np.where(own["received_us"] >= 0.0, own["received_us"], own["sent_us"])
    # a prefill engine gives the first token and is done
    left = np.concatenate([own["finish_us"], sent_on["first_token_us"]])
    return np.concatenate([came, sent_on["sent_us"]]), left


def in_flight_at(moments_us: np.ndarray, came_us: np.ndarray, left_us: np.ndarray) -> np.ndarray:
    """Return how many requests had come and had not left at each moment, shape [moments]."""
    came, left = np.sort(came_us), np.sort(left_us)
    return np.searchsorted(came, moments_us, side="right") - np.searchsorted(left, moments_us, side="right")
