"""Fidelity: what becomes of everything that is said, on the way from each dialect to each other one.

    cells(dialects)                  what becomes of one thing at a time, on constructed requests
    measure_conversion(request, target)     what becomes of everything in one request
    Tally                            the same for many requests, counted
    conversations()                  formats that say nothing but messages, to be measured like dialects

Requests come in, verdicts go out; ``table`` turns them into Markdown. A dialect is whatever reads and writes requests
under a name: nothing here knows which there are. The one rule: it tells what it read back from the target's wire, and
believes no dialect's word for it.
"""

from dragoman.fidelity.cases import CASES, Case, Dialect, make_sample, native_samples
from dragoman.fidelity.comparison import Finding, compare_requests
from dragoman.fidelity.conversations import transcript_dialects
from dragoman.fidelity.measure import Cell, Shortfall, Tally, make_cells, measure_conversion

__all__ = [
    "CASES",
    "Case",
    "Cell",
    "Dialect",
    "Finding",
    "Shortfall",
    "Tally",
    "compare_requests",
    "make_cells",
    "make_sample",
    "measure_conversion",
    "native_samples",
    "transcript_dialects",
]
