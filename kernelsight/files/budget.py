"""The budget of a door: how much may be read, parsed, computed and answered of what an untrusted party hands in.

Every function that reads, parses or asks what others wrote takes one; each kind of door has its own, named here.
"""

from __future__ import annotations

from typing import NamedTuple


class Budget(NamedTuple):
    """The most that a door takes of one input, and gives back.

    ``bytes`` that are read; ``values`` and ``levels`` of nesting that are parsed; ``seconds`` that another machine, or
    a process that computes for another, may take; of an answer ``answer_bytes`` as JSON, ``rows``, and ``characters``
    of a text in a row.
    """

    bytes: int = 1 << 24
    values: int = 1_000_000
    levels: int = 100
    seconds: float = 10.0
    answer_bytes: int = 100_000
    rows: int = 200
    characters: int = 2000


# JSON of settings: a quantisation names every matrix of every expert
SETTINGS = Budget()
MANIFEST = Budget(values=100_000)
# engine options, and what a model's own file declares: each is looked up
OPTIONS = Budget(values=10_000)
ARCHITECTURE = Budget(bytes=1 << 16, values=10_000)
# a table that is read whole, such as a grid
ROWS = Budget(bytes=1 << 30, values=100_000_000)
# a log of many requests in YAML, and a document or a trace of them
REPORT = Budget(bytes=1 << 33, values=20_000_000)
WHOLE = Budget(bytes=1 << 33, values=1 << 30)
# a log that is read in pieces, and one that grows while it is read
LOG = Budget(bytes=1 << 36)
GROWING = Budget(bytes=1 << 62)
# what another server answers: its /metrics, a language model
SCRAPE = Budget(bytes=8 << 20)
# a tokenizer: the largest have some 40 MB
TOKENIZER = Budget(bytes=1 << 28)
# what a watch saved of itself
STATE = Budget(bytes=1 << 26, values=10_000_000)
# a tool of `mcp`; its seconds are those of --timeout
TOOL = Budget(seconds=120.0)
