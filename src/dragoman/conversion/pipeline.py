"""Convert conversations to another format, in one process or in several.

A short file is converted in this process. A longer one is split into batches of whole conversations for worker
processes; results are written in order, and the number of pending batches is bounded. Invariant: the output does not
depend on the number of processes.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import IO, Any, Final

import msgspec

from dragoman import formats
from dragoman.conversion.source import Conversation, Source, join_place
from dragoman.errors import InputError
from dragoman.exchange import Loss, Request
from dragoman.formats.reader import FragmentError
from dragoman.formats.writer import Text
from dragoman.ids import ulid
from dragoman.rules import Violation, check

Progress = Callable[[int, int | None], None]
# Rules about model, routing, usage and origin of reasoning: only the canonical format contains these.
ORIGIN: Final = ("assistant-names-model", "assistant-has-routing", "assistant-has-usage", "reasoning-names-origin")
_BATCH_BYTES: Final = 512 * 1024
_MAX_PENDING_BATCHES: Final = 16  # shorter files need no worker processes; also the limit of pending batches


class LossCount(msgspec.Struct, frozen=True):
    """The number of losses or adjustments of one kind with one reason."""

    what: str
    reason: str
    count: int


class ViolationCount(msgspec.Struct, frozen=True):
    """The number of violations of a rule."""

    rule: str
    count: int


class Summary(msgspec.Struct):
    """The result of a conversion."""

    conversations: int = 0
    messages: int = 0
    bytes: int = 0
    losses: list[LossCount] = []
    adjustments: list[LossCount] = []  # parts that were changed because the target rejects the original
    breaches: list[ViolationCount] = []
    skipped: list[str] = []  # problem and place of each omitted record


class RecordError(InputError):
    """A record that cannot be read. ``number`` is that of its line or item."""

    def __init__(self, error: FragmentError, where: str) -> None:
        super().__init__(error.what, where=where, remedy=error.remedy, code=error.code)
        self.number = error.number


class _Job(msgspec.Struct):
    source: str
    unit: str
    format: str
    by_message: bool
    to: str
    is_strict: bool
    collect_losses: bool
    skip_invalid: bool
    batch: list[Conversation]


class _JobResult(msgspec.Struct):
    data: bytes
    conversations: int
    messages: int
    losses: Counter[tuple[str, str]]
    adjustments: Counter[tuple[str, str]]
    loss_lines: bytes  # one line per loss or adjustment
    breaches: Counter[str]
    skipped: list[str]


def convert(
    source: Source,
    out: IO[bytes],
    to: str,
    *,
    losses_to: IO[bytes] | None = None,
    is_strict: bool = False,
    skip_invalid: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
    title: str = "",
) -> Summary:
    """Write every conversation of a source in another format.

    ``is_strict``: a loss is an error. ``skip_invalid``: a record that cannot be read is omitted and listed in the
    summary.
    """
    summary, loss_counts, violation_counts = Summary(), Counter[tuple[str, str]](), Counter[str]()
    adjustment_counts = Counter[tuple[str, str]]()
    summary.bytes += out.write(formats.write_header(to, title or source.name))
    for job_result in _run_jobs(_make_jobs(source, to, (is_strict, losses_to is not None, skip_invalid)), processes):
        summary.bytes += out.write(job_result.data)
        summary.conversations += job_result.conversations
        summary.messages += job_result.messages
        loss_counts.update(job_result.losses)
        adjustment_counts.update(job_result.adjustments)
        violation_counts.update(job_result.breaches)
        summary.skipped += job_result.skipped
        if losses_to is not None:
            losses_to.write(job_result.loss_lines)
        if progress is not None:
            progress(source.read_bytes(), source.size)
    summary.bytes += out.write(formats.write_footer(to))
    if source.entries:
        loss_counts["entry", "trace entries of an export are not converted"] += source.entries
    summary.breaches = [ViolationCount(rule, count) for rule, count in violation_counts.most_common()]
    summary.losses = _rank_losses(loss_counts)
    summary.adjustments = _rank_losses(adjustment_counts)
    return summary


def _rank_losses(counts: Counter[tuple[str, str]]) -> list[LossCount]:
    return [LossCount(what, reason, count) for (what, reason), count in counts.most_common()]


def _make_jobs(source: Source, to: str, flags: tuple[bool, bool, bool]) -> Iterator[_Job]:
    def make_job(batch: list[Conversation]) -> _Job:
        return _Job(source.name, source.unit, source.format, source.by_message, to, *flags, batch)

    batch: list[Conversation] = []
    length = 0
    for conversation in source.conversations:
        batch.append(conversation)
        length += sum(len(fragment.data) for fragment in conversation)
        if length >= _BATCH_BYTES:
            yield make_job(batch)
            batch, length = [], 0
    if batch:
        yield make_job(batch)


def _run_jobs(jobs: Iterator[_Job], processes: int | None) -> Iterator[_JobResult]:
    """Yield the result of each job, in order."""
    count = processes or _available_cores()
    first = [job for _, job in zip(range(_MAX_PENDING_BATCHES), jobs, strict=False)]
    if len(first) < _MAX_PENDING_BATCHES or count == 1:
        yield from map(_run_job, first)
        yield from map(_run_job, jobs)
        return
    context = multiprocessing.get_context("spawn")  # a forked process with threads may hang
    pool = ProcessPoolExecutor(count, context)
    try:
        pending: deque[Future[_JobResult]] = deque(pool.submit(_run_job, job) for job in first)
        first.clear()
        for job in jobs:
            yield pending.popleft().result()
            pending.append(pool.submit(_run_job, job))
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_job(job: _Job) -> _JobResult:
    """Convert one batch."""
    texts, messages = [], 0
    loss_counts: Counter[tuple[str, str]] = Counter()
    adjustment_counts: Counter[tuple[str, str]] = Counter()
    loss_lines: list[bytes] = []
    breaches: Counter[str] = Counter()
    skipped: list[str] = []
    for conversation in job.batch:
        request = _read_job_conversation(job, conversation, skipped)
        if request is None:
            continue
        # Messages of other formats never have an origin: check reports it, and convert does not.
        breaches.update(violation.rule for violation in check(request.messages) if violation.rule not in ORIGIN)
        text = _write_conversation(job, request, conversation[0].number)
        texts.append(text.data)
        messages += len(request.messages)
        loss_counts.update((loss.block_type, loss.reason) for loss in text.losses)
        adjustment_counts.update((adjustment.block_type, adjustment.reason) for adjustment in text.adjustments)
        if job.collect_losses:
            number = conversation[0].number
            loss_lines.extend(_format_loss(loss, job, number) for loss in (*text.losses, *text.adjustments))
    return _JobResult(
        data=b"".join(texts),
        conversations=len(texts),
        messages=messages,
        losses=loss_counts,
        adjustments=adjustment_counts,
        loss_lines=b"".join(loss_lines),
        breaches=breaches,
        skipped=skipped,
    )


def _read_job_conversation(job: _Job, conversation: Conversation, skipped: list[str]) -> Request | None:
    """Read a conversation without its unreadable records, if they may be skipped; ``None`` if no record is left."""
    while conversation:
        try:
            return read_conversation(job.format, conversation, job.source, job.unit, by_message=job.by_message)
        except RecordError as error:
            if not job.skip_invalid:
                raise
            skipped.append(str(error))
            conversation = tuple(
                fragment for fragment in conversation if job.by_message and fragment.number != error.number
            )
    return None


def find_violations(name: str, request: Request) -> Iterator[Violation]:
    """Yield the rule violations of a conversation, except those about data that its format cannot contain."""
    for violation in check(request.messages):
        if name == formats.CANONICAL or violation.rule not in ORIGIN:
            yield violation


def read_conversation(name: str, conversation: Conversation, source: str, unit: str, *, by_message: bool) -> Request:
    """Read a conversation. Raises ``InputError`` with the file and the place."""
    try:
        session_id = "" if name == formats.CANONICAL else derive_session_id(conversation)
        return formats.read(name, conversation, session_id, by_message=by_message)
    except FragmentError as error:
        where = source if unit == "document" else f"{source}, {unit} {error.number}"
        raise RecordError(error, join_place(where, error.path, is_line=unit == "line")) from None


def derive_session_id(conversation: Conversation) -> str:
    """Return a session id derived from the text and its position."""
    digest = hashlib.sha256(str(conversation[0].number).encode())
    for fragment in conversation:
        digest.update(fragment.data.strip())
    return f"sess_{ulid(0, int.from_bytes(digest.digest()[:10]))}"


def _write_conversation(job: _Job, request: Request, number: int) -> Text:
    try:
        text = formats.write(job.to, request)
    except InputError as error:
        raise InputError(str(error), where=_locate(job, number), code=error.code) from None
    if text.losses and job.is_strict:
        loss = text.losses[0]
        raise InputError(
            f"{loss.adapter} cannot carry {loss.block_type} ({loss.reason})",
            where=_locate(job, number),
            remedy="Leave --strict out to convert the rest",
            code="would_lose",
        )
    return text


def _locate(job: _Job, number: int) -> str:
    return job.source if job.unit == "document" else f"{job.source}, {job.unit} {number}"


def _format_loss(loss: Loss, job: _Job, number: int) -> bytes:
    place: dict[str, Any] = {"file": job.source, job.unit: number}
    return msgspec.json.encode({**place, **msgspec.structs.asdict(loss)}) + b"\n"


def read_source(source: Source) -> Iterator[tuple[Conversation, Request]]:
    """Yield each conversation of a source with its request."""
    for conversation in source.conversations:
        yield (
            conversation,
            read_conversation(source.format, conversation, source.name, source.unit, by_message=source.by_message),
        )
