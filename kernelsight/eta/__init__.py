"""From measured sweeps to the constants of the latency expressions: training rows, hierarchical fit, packs."""
