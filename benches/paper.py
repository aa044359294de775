"""The figures and tables of the paper (arXiv 2606.28565), each from published data: one command a figure.

    python benches/paper.py 3|7|8|9|10|11|12|tables|points   # prints its data, draws its picture

Records `paper_FIGURE`, which docs/accuracy/paper.md shows, and draws docs/pictures/paper_FIGURE. tables: kernel
errors; points: those after three calls of each kernel; end-to-end errors are those of benches/end_to_end.py. The sweep
is imported if needed, and what several figures share (GB200's rows with predictions, replayed runs) is kept in a folder
for each state of the program: the first of 10, 11 and tables takes 4 CPU-minutes, of 9 and 12 two.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from record import KERNELS, ROOT, SIMULATION, digest, record

from kernelsight.caches.private_folder import user_cache
from kernelsight.laboratory.paper.kernels import figure_3, figure_7, figure_10, figure_11
from kernelsight.laboratory.paper.serving import figure_8, figure_9, figure_12
from kernelsight.laboratory.paper.sources import Sources
from kernelsight.laboratory.paper.tables import points, tables
from kernelsight.present.output import as_json

FIGURES = {
    **{"3": figure_3, "7": figure_7, "8": figure_8, "9": figure_9, "10": figure_10, "11": figure_11, "12": figure_12},
    "tables": tables,
    "points": points,
}
# charts in a row of a picture, and pictures whose many points would make a large SVG
COLUMNS = {"10": 4, "9": 3}
PNG = ("9",)


def state() -> str:
    """Return a digest of what the kept predictions depend on."""
    parts = sorted({*KERNELS, *SIMULATION, "backtest"})
    return hashlib.sha256(" ".join(map(digest, parts)).encode()).hexdigest()[:12]


def main() -> None:
    """Compute a figure, print its data, draw and record it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figure", choices=list(FIGURES))
    parser.add_argument("--sweep", type=Path, help="as `calibrate import aiconfigurator` wrote it (default: imported)")
    parser.add_argument("--folder", type=Path, help="where shared results are kept (default: a folder of the user)")
    parser.add_argument("--no-record", action="store_true", help="print the data only")
    arguments = parser.parse_args()
    folder = arguments.folder or user_cache() / "kernelsight-paper"
    folder.mkdir(parents=True, exist_ok=True)
    data, charts = FIGURES[arguments.figure](Sources(folder, state(), arguments.sweep))
    print(as_json(data))
    if arguments.no_record:
        return
    if charts:
        from kernelsight.laboratory.cli.backtest_plot import write_picture

        ending = "png" if arguments.figure in PNG else "svg"
        picture = ROOT / "docs" / "pictures" / f"paper_{arguments.figure}.{ending}"
        write_picture(charts, picture, COLUMNS.get(arguments.figure, 2))
    record(f"paper_{arguments.figure}", data, f"python benches/paper.py {arguments.figure}")


if __name__ == "__main__":
    main()
