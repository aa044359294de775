"""Views of recorded results: what the pages show of ``benches/results/``, one module a page or subject."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches"))
