"""The program of the guide that designs a GPU, run as it stands there: ``python benches/design_gpu.py [--record]``.

What it prints is what the guide shows: each row of facts that the optimiser tried, and where it ended.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from pathlib import Path
from typing import Any

from record import record

GUIDE = Path(__file__).resolve().parents[1] / "docs/guides/design_a_gpu.md"
TRIED = re.compile(r"\[([\d. ]+)\] T/s: ([\d,]+) tokens/s for \$([\d,]+), ([\d.]+) per")
ENDED = re.compile(r"from \((.*?)\): \[([\d. ]+)\] T/s, bound by (.*)")


def program() -> str:
    """Return the optimiser of the guide: the last of its programs."""
    return re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.S | re.M)[-1]


def read(printed: str) -> list[dict[str, Any]]:
    """Return for each start what was tried, and where it ended."""
    found, tried = [], []
    for line in printed.splitlines():
        if one := TRIED.match(line):
            facts = [float(number) for number in one[1].split()]
            tokens, price = (float(one[part].replace(",", "")) for part in (2, 3))
            tried.append({"facts": facts, "tokens_per_s": tokens, "price": price, "per_1000": float(one[4])})
        elif end := ENDED.match(line):
            start = [float(number) for number in end[1].split(",")]
            best = [float(number) for number in end[2].split()]
            found.append({"start": start, "best": best, "bound_by": end[3], "tried": tried})
            tried = []
    return found


def main() -> None:
    """Run the program and print what it prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="keep the figures in benches/results/")
    arguments = parser.parse_args()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program(), str(GUIDE), "exec"), {"__name__": "design"})
    print(printed.getvalue(), end="")
    if arguments.record:
        record("design_gpu", {"runs": read(printed.getvalue())}, "python benches/design_gpu.py")


if __name__ == "__main__":
    main()
