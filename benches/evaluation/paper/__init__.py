"""Figures and tables of the paper (arXiv 2606.28565), computed from published sweeps and runs: `benches/paper.py`."""
