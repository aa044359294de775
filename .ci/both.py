"""Checks that tests skipped in two environments are allowed to be: `both.py names FIRST`, `both.py check FIRST SECOND`.

`names` prints the tests that the first run skipped, one per line. `check` prints both counts and exits 1 if a test was
skipped twice for lack of something that can be installed or that is in ../shared. Allowed are only reasons that no
installation removes: no GPU or driver, and tests that need a package to be absent.
"""

import json
import re
import sys
from pathlib import Path

# vLLM pins a torch version that the newest cuDNN and FlashInfer do not support
ALLOWED = re.compile(
    r"there is a GPU here|vLLM is installed|vllm is not installed|cannot be imported here: .*lib(cuda|nvidia-ml)\.so"
)


def read(path: str) -> dict[str, str]:
    """Return the skipped tests of a run, with their reasons."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def main(verb: str, first: str, second: str = "") -> int:
    """Print the names or check the reasons; return the exit status."""
    if verb == "names":
        print(*read(first), sep="\n")
        return 0
    twice = {test: why for test, why in read(second).items() if not ALLOWED.search(why)}
    print(f"skipped in the first environment: {len(read(first))}; of these in the second too: {len(read(second))}")
    for test, why in twice.items():
        print(f"skipped in both: {test}: {why}", file=sys.stderr)
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
