"""Worker processes that end with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Let a worker end when the process that waits for it is killed; else it would wait for work for ever."""

    def watch() -> None:
        parent.join()
        os._exit(1)

    if parent := multiprocessing.parent_process():
        threading.Thread(target=watch, daemon=True).start()
