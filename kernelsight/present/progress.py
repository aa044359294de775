"""Progress of long work on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from kernelsight.dataflow.progress import Done
from kernelsight.number_format import rounded
from kernelsight.present.output import is_quiet, note

# seconds between lines if stderr is not a terminal, and between looks at the clock if it is one
LINES_EVERY_S, LOOKS_EVERY_S = 30.0, 0.5


class Waiting:
    """Shows long work while it runs: the share done and the time left, or the seconds spent until a share is known.

    A terminal has one line that is overwritten; elsewhere there is a line every LINES_EVERY_S. Sentences are lines.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._on_terminal = sys.stderr.isatty()
        self._share: Done | None = None
        self._bar: Any = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> Waiting:
        self._started_s = time.monotonic()
        if not is_quiet():
            self._thread.start()
        return self

    def __call__(self, news: Done | str) -> None:
        """Take note of how much is done, or show a sentence."""
        if is_quiet():
            return
        if isinstance(news, str):
            self._clear()
            note(news)
            return
        self._share = news
        if self._on_terminal:
            self._draw(news)

    def _draw(self, share: Done) -> None:
        from tqdm import tqdm

        if self._bar is None:
            self._clear()
            self._bar = tqdm(total=share.total, desc=self.text, file=sys.stderr, leave=False, dynamic_ncols=True)
            self._bar.start_t -= time.monotonic() - self._started_s
        self._bar.unit, self._bar.n, self._bar.total = f" {share.what}", share.done, share.total
        self._bar.refresh()

    def _count(self) -> None:
        while not self._ended.wait(LOOKS_EVERY_S if self._on_terminal else LINES_EVERY_S):
            if self._bar is not None:
                self._bar.refresh()
                continue
            begin, end = ("\r", "") if self._on_terminal else ("", "\n")
            print(f"{begin}{self._line(time.monotonic() - self._started_s)}", end=end, file=sys.stderr, flush=True)

    def _line(self, spent_s: float) -> str:
        if not self._share or not self._share.done:
            return f"{self.text} {rounded(spent_s)} s"
        left_s = spent_s / self._share.done * (self._share.total - self._share.done)
        return f"{self.text}: {self._share}, {rounded(spent_s)} s, {rounded(left_s)} s left"

    def _clear(self) -> None:
        if self._on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._bar is not None:
            self._bar.close()
        self._clear()
