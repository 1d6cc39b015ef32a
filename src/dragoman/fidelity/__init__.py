"""Fidelity: measure what happens to every part of a request or reply between two dialects.

    make_cells(dialects)                  the result for one case at a time, on constructed requests
    measure_conversion(request, target)   the result for everything in one request
    Tally                                 the same for many requests, counted
    transcript_dialects()                 transcript formats, measured like dialects

``table`` formats the results as Markdown. A dialect is any object with a name that reads and writes requests.
Invariant: a result is based on reading the target's wire back, not on the losses that a dialect reports.
"""

from dragoman.fidelity.cases import CASES, Case, Dialect, make_sample, native_samples
from dragoman.fidelity.comparison import Finding, compare_requests
from dragoman.fidelity.measure import Cell, Shortfall, Tally, make_cells, measure_conversion, transcript_dialects

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
