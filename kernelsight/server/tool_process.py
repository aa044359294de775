"""The process in which ``kernelsight mcp`` computes: it can be ended at any moment, whatever it is computing.

Calls and answers are lines of JSON in its stdin and stdout. It ends when its stdin does, and by an alarm of the kernel
when a call takes longer than it may: neither waits for compiled code.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput, KernelSightError, RunFailed, shown
from kernelsight.files.own import own_json

# most bytes of a line: an answer as JSON, each character as up to six bytes
LINE_BYTES = 1 << 20
# after its time a call is ended by the process that made it; where that is gone, by the alarm, this much later
ALARM_AFTER_S = 5.0


class ToolProcess:
    """Computes one call at a time, in a process that is started when there is none.

    ``root``: folder below which files are read; ``most_s``: seconds that a call may take.
    """

    def __init__(self, root: Path, most_s: float) -> None:
        self.root, self.most_s = root, most_s
        self._process: asyncio.subprocess.Process | None = None
        self._one_call = asyncio.Lock()

    async def call(self, tool: str, flags: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tool's answer, see ``answer_of``; a call that is cancelled ends the process.

        InvalidInput: the tool refuses. RunFailed: it took too long, or its process ended.
        """
        async with self._one_call:
            line = b""
            try:
                process = self._process = self._process or await self._start()
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(json.dumps([tool, dict(flags), dict(arguments)]).encode() + b"\n")
                line = await asyncio.wait_for(process.stdout.readline(), self.most_s)
            except TimeoutError:
                raise RunFailed(
                    f"{tool} took longer than {self.most_s:g} s, the most for one call; ask for less at once, such as "
                    "fewer rows, requests or scenarios."
                ) from None
            finally:
                if not line:
                    self.end()
        if not line:
            raise RunFailed(f"the process of {tool} ended, perhaps for lack of memory; ask for less at once.")
        answer = own_json(line)
        if "error" in answer:
            raise InvalidInput(answer["error"])
        return answer["answer"]

    async def _start(self) -> asyncio.subprocess.Process:
        # -P: no module is taken from the working directory, which may be anyone's
        words = [sys.executable, "-P", "-m", "kernelsight.server.tool_process", str(self.root), str(self.most_s)]
        paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        return await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES, cwd=self.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip

    def end(self) -> None:
        """End the process, and what it computes, without waiting for that."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()

    async def close(self) -> None:
        """End the process, and wait until it is gone."""
        process = self._process
        self.end()
        if process is not None and process.stdin is not None:
            process.stdin.close()
            await process.communicate()


def main(root: str, most_s: str) -> None:
    """Answer calls until stdin ends."""
    from kernelsight.files.bounded_files import confine

    confine(Path(root))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(calls,), daemon=True).start()
    while True:
        call = calls.get()
        _set_alarm(float(most_s) + ALARM_AFTER_S)
        answer = json.dumps(_answer(call))
        _set_alarm(0.0)
        answers.write(answer + "\n")
        answers.flush()


def _read(calls: queue.SimpleQueue[str]) -> None:
    """Queue the lines of stdin, and end this process where they end."""
    for line in sys.stdin:
        calls.put(line)
    os._exit(0)


def _answer(call: str) -> dict[str, Any]:
    from kernelsight.server.tool_functions import answer_of

    try:
        return {"answer": answer_of(*own_json(call))}
    except KernelSightError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "out of memory; ask for less at once."}
    except OSError as error:
        return {"error": f"{shown(str(error.filename))} cannot be read ({error.strerror})."}


def _set_alarm(seconds: float) -> None:
    """Let the kernel end this process in ``seconds``, 0: never."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
