"""Views of planted faults (`compare_plain`, `compare_noise`, `compare_steps`, `compare_foreign`) and of `corrections`."""

from __future__ import annotations

from figures.blocks import result
from figures.text import percent, table

LOGS = {"compare_plain": "requests alone", "compare_noise": "with noise", "compare_steps": "with steps"}
KINDS = {"one": "one fault", "two": "two faults", "clean": "none (no cause named)"}


def planted() -> str:
    """How often planted faults are named first, and sized within a fifth."""
    found = {name: result(name) for name in LOGS}
    rows = []
    for kind, title in KINDS.items():
        worlds = " / ".join(dict.fromkeys(str(each["worlds"][kind]) for each in found.values()))
        named = [percent(each["named"][kind], 0) for each in found.values()]
        sized = [percent(each["sized"][kind], 0) if each["sized"][kind] is not None else "" for each in found.values()]
        rows.append([title, worlds, *named, *sized])
    head = [f"{what}, {log}" for what in ("named first", "size within 20 %") for log in LOGS.values()]
    return table(["planted", "worlds", *head], rows)


def foreign() -> str:
    """How often the first cause is right on logs of a server that shares nothing with the simulator."""
    found = result("compare_foreign")
    rows = []
    for world, own in found["worlds"].items():
        shares = (own[name] for name in ("named", "sized", "holds"))
        rows.append([world, str(own["logs"]), *("" if share is None else percent(share, 0) for share in shares)])
    head = ["first cause right", "its size within a factor of 1.3", "written correction no worse than none"]
    return table([f"world ({found['requests']} requests)", "logs", *head], rows)


def corrections() -> str:
    """Median absolute errors of single requests on later time."""
    found = result("corrections")
    words = {"uncorrected": "uncorrected", "one_factor": "one factor a metric", "corrected": "corrected"}
    rows = [[title, *map(percent, found["errors"][name])] for name, title in words.items()]
    rows.append(["worlds in which corrected is ahead of one factor", *(percent(share, 0) for share in found["ahead"])])
    return table([f"{found['worlds']} worlds", "TTFT", "TPOT", "E2E"], rows)
