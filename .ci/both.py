"""Says of tests that two runs skipped whether that is allowed: `both.py names FIRST` or `both.py check FIRST SECOND`.

`names` prints the tests that the first run skipped, a line each. `check` prints both counts and exits 1 where a test
was skipped twice for want of something that can be installed, or that lies in ../shared. Allowed is alone what no
installation brings: a GPU or its driver, and what is the other way round where it is installed.
"""

import json
import re
import sys
from pathlib import Path

# vLLM pins a torch of its own, of which the newest cuDNN and FlashInfer know nothing
ALLOWED = re.compile(
    r"there is a GPU here|vLLM is installed|vllm is not installed|cannot be imported here: .*lib(cuda|nvidia-ml)\.so"
)


def read(path: str) -> dict[str, str]:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def main(verb: str, first: str, second: str = "") -> int:
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
