"""Tables of the accuracy of `compare`: planted faults, an independent server, and corrections."""

from __future__ import annotations

from figures.blocks import result
from figures.text import percent, table

LOGS = {"compare_plain": "requests alone", "compare_noise": "with noise", "compare_steps": "with steps"}
KINDS = {"one": "one fault", "two": "two faults", "clean": "no fault (no cause named)"}


def planted() -> str:
    """Table of the shares of worlds whose planted faults are named first, and sized within a fifth."""
    results = {name: result(name) for name in LOGS}
    rows = []
    for kind, title in KINDS.items():
        worlds = " / ".join(dict.fromkeys(str(each["worlds"][kind]) for each in results.values()))
        named_shares = [percent(each["named"][kind], 0) for each in results.values()]
        sized_shares = [
            percent(each["sized"][kind], 0) if each["sized"][kind] is not None else "" for each in results.values()
        ]
        rows.append([title, worlds, *named_shares, *sized_shares])
    head = [f"{what}, {log}" for what in ("named first", "size within 20 %") for log in LOGS.values()]
    return table(["planted", "worlds", *head], rows)


def foreign() -> str:
    """Table of the shares of an independent server's logs with the right first cause, size and correction."""
    recorded = result("compare_foreign")
    rows = []
    for world, scores in recorded["worlds"].items():
        shares = (scores[name] for name in ("named", "sized", "holds"))
        rows.append([world, str(scores["logs"]), *("" if share is None else percent(share, 0) for share in shares)])
    head = ["first cause right", "its size within a factor of 1.3", "written correction no worse than no correction"]
    return table([f"world ({recorded['requests']} requests)", "logs", *head], rows)


def corrections() -> str:
    """Table of median absolute errors of single requests on later time, before and after correction."""
    recorded = result("corrections")
    titles = {"uncorrected": "uncorrected", "one_factor": "one factor per metric", "corrected": "corrected"}
    rows = [[title, *map(percent, recorded["errors"][name])] for name, title in titles.items()]
    rows.append(
        [
            "share of worlds in which corrected is better than one factor",
            *(percent(share, 0) for share in recorded["ahead"]),
        ]
    )
    return table([f"{recorded['worlds']} worlds", "TTFT", "TPOT", "E2E"], rows)
