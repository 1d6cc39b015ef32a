"""Measure every ordered pair of dialects on constructed requests, and single requests.

    make_cells(dialects)                  a cell per case, from each dialect to each other and to itself
    measure_conversion(request, target)   findings for everything in a request or reply
    Tally                                 findings, counted
    transcript_dialects()                 transcript formats, measured like dialects with messages only

Invariant: a value counts as kept only if it was read back from the target's wire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Final, Literal

import msgspec

from dragoman.exchange import Loss, Options, Reply, Request, Written
from dragoman.fidelity.cases import CASES, Case, Dialect, make_sample, supports_case
from dragoman.fidelity.comparison import Finding, collect_options, compare_requests
from dragoman.fidelity.reply_comparison import compare_replies
from dragoman.transcripts import FORMATS
from dragoman.wire.residue import diff, foreign_options

Verdict = Literal["exact", "kept", "changed", "hint", "loss", "silent", "n/a"]
_WORST_FIRST: Final = ("silent", "loss", "hint", "changed", "kept")
_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_A_MESSAGE: Final = "a transcript contains only messages"


class Cell(msgspec.Struct, frozen=True):
    """The result for one case from one dialect to another."""

    source: str
    target: str
    group: str
    case: str
    verdict: Verdict
    notes: tuple[str, ...] = ()  # the changes, or the reasons of the losses

    @property
    def is_defect(self) -> bool:
        """Whether this is a defect: a silent loss, or a difference within one dialect."""
        return self.verdict == "silent" or (self.source == self.target and self.verdict not in ("exact", "n/a"))


class Shortfall(msgspec.Struct, frozen=True):
    """A silent loss in a given request, or a conversion that cannot be read."""

    record: str
    source: str
    target: str
    kind: str
    note: str
    place: str = ""


def measure_conversion(source: Request | Reply, target: Any) -> tuple[Finding, ...]:
    """Return what happens to everything in a request or reply when it is written for the target and read back."""
    return _measure_reply(source, target) if isinstance(source, Reply) else _measure_request(source, target)


def _measure_reply(reply: Reply, target: Any) -> tuple[Finding, ...]:
    written: Written = target.write_reply(reply)
    return compare_replies(reply, written, target.read_reply(written.wire), target.NAME)


def _measure_request(request: Request, target: Dialect) -> tuple[Finding, ...]:
    written = target.write_request(request)
    implicit: Mapping[str, str] = getattr(target, "IMPLIED_OPTIONS", {})
    bases: tuple[str, ...] = getattr(target, "BASES", ())
    return compare_requests(request, written, target.read_request(written.wire), target.NAME, implicit, bases=bases)


def make_cells(dialects: Iterable[Dialect], cases: Iterable[Case] = CASES) -> tuple[Cell, ...]:
    """Return a cell for each case and each ordered pair of dialects."""
    all_dialects = tuple(dialects)
    return tuple(cell for source in all_dialects for case in cases for cell in _make_row(source, case, all_dialects))


def _make_row(source: Dialect, case: Case, targets: Iterable[Dialect]) -> Iterator[Cell]:
    wire = make_sample(source, case)
    parsed = None if wire is None else _read_sample(source, wire, case)
    for target in targets:
        if (
            parsed is None
            or not supports_case(target, case)
            or (isinstance(parsed, Reply) and not hasattr(target, "write_reply"))
        ):
            yield Cell(source.NAME, target.NAME, case.group, case.name, "n/a")
            continue
        verdict, notes = worst_verdict(findings_of(case.kind, measure_conversion(parsed, target)))
        if source.NAME == target.NAME and _is_exact(wire, parsed, target):
            verdict, notes = "exact", ()
        yield Cell(source.NAME, target.NAME, case.group, case.name, verdict, notes)


def findings_of(kind: str, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of a kind; if there are none, the losses of what contains it."""
    found = list(findings)
    for name in (kind, kind.rpartition(".")[0]):
        own = [finding for finding in found if finding.kind == name and (name == kind or finding.outcome == "loss")]
        if own:
            return own
    return []


def _read_sample(source: Any, wire: Any, case: Case) -> Request | Reply:
    parsed: Request | Reply = source.read_request(wire) if case.answer is None else source.read_reply(wire)
    return parsed


def worst_verdict(findings: list[Finding]) -> tuple[Verdict, tuple[str, ...]]:
    """Return the worst outcome and its notes. Without a finding, the subject of the case was not looked up."""
    if not findings:
        return "silent", ("no finding",)
    for outcome in _WORST_FIRST:
        notes = [finding.note for finding in findings if finding.outcome == outcome]
        if notes:
            return outcome, tuple(dict.fromkeys(note for note in notes if note))
    return "kept", ()


def _is_exact(wire: Any, parsed: Request | Reply, dialect: Any) -> bool:
    written = dialect.write_reply(parsed) if isinstance(parsed, Reply) else dialect.write_request(parsed)
    return not written.losses and diff(written.wire, wire) is None


class Tally:
    """Counts of given requests by source, target, kind and outcome, and every shortfall."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.counts: Counter[tuple[str, str, str, str]] = Counter()
        self.notes: Counter[tuple[str, str, str, str, str]] = Counter()
        self.shortfalls: list[Shortfall] = []

    def add(self, record: str, source: str, target: str, findings: Iterable[Finding]) -> None:
        """Count the findings of one request."""
        for finding in findings:
            key = (source, target, finding.kind, finding.outcome)
            self.counts[key] += 1
            if finding.note:
                self.notes[(*key, finding.note)] += 1
            if finding.outcome == "silent":
                self.shortfalls.append(Shortfall(record, source, target, finding.kind, finding.note, finding.place))


# --- transcript formats -----------------------------------------------------------------------------------------------


def transcript_dialects() -> tuple[TranscriptDialect, ...]:
    """Return all transcript formats."""
    return tuple(TranscriptDialect(module) for module in FORMATS.values())


class TranscriptDialect:
    """A transcript format that reads and writes the messages of requests. Everything else in a request is a loss."""

    GROUPS: Final = ("Blocks",)  # its groups of cases

    def __init__(self, module: ModuleType) -> None:
        self.NAME: str = module.NAME
        self._module = module

    def read_request(self, wire: Any) -> Request:
        """Return the messages as a request without other fields."""
        return Request(model=None, messages=self._module.read_messages(wire, session_id="", created_at=_TIME))

    def write_request(self, request: Request) -> Written:
        """Write the messages; report everything else as a loss."""
        written: Written = self._module.write_messages(request.messages)
        return Written(written.wire, (*written.losses, *self._request_losses(request)), written.notes)

    def message_part(self, request: Request) -> Request:
        """Return the part of a request that a transcript can contain."""
        return request.replace(model=None, tools=(), options=Options(), provider_raw=None)

    def _request_losses(self, request: Request) -> Iterator[Loss]:
        names = ["tool" for _ in request.tools]
        for name in (*names, *collect_options(request), *foreign_options(request, self.NAME)):
            yield Loss("", "", name, self.NAME, _NOT_A_MESSAGE)
