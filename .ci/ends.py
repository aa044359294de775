"""Checks that an environment holds one end of the constraints: `ends.py lowest`, `ends.py newest`.

Prints how many of .ci/constraints.txt are installed; exits 1, with their names, if one is at another version.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CONSTRAINT = re.compile(r"([\w-]+)>=([\w.]+),<=([\w.]+)")


def main(end: str) -> int:
    """Print the check; return the exit status."""
    installed, others = 0, []
    for line in Path(__file__).with_name("constraints.txt").read_text(encoding="utf-8").splitlines():
        if not (found := CONSTRAINT.fullmatch(line)):
            continue
        name, *ends = found.groups()
        try:
            here = version(name)
        except PackageNotFoundError:
            continue
        installed += 1
        wanted = ends[end == "newest"]
        # 2.0 is 2.0.0
        if re.sub(r"(\.0)+$", "", here) != re.sub(r"(\.0)+$", "", wanted):
            others.append(f"{name} {here}, not {wanted}")
    print(f"{end} versions: {installed} of the constraints are installed", *others, sep="\n")
    return 1 if others or not installed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
