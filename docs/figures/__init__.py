"""Views of recorded results: the figures of ``benches/results/`` that pages show, one module per page or subject."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches"))
