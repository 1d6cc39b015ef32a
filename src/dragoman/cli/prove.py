"""``dragoman prove``: verify that recorded traffic is equal after a round trip.

A record is one HTTP exchange: a JSON object with ``id``, ``dialect``, ``provider``, ``kind``, ``status``, ``request``,
``response``, ``stream`` and ``stream_format``, one per line in ``*.jsonl`` or ``*.jsonl.gz`` files. The comparison is
on JSON values: key order is ignored, numbers are compared as written, ids must be equal. With ``--table-to``, requests
and replies are also translated to every other dialect (``fidelity``).
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from dragoman import catalog, dialects
from dragoman.cli import fidelity
from dragoman.cli.options import NonNegative
from dragoman.dialects import Dialect
from dragoman.errors import InputError, UnknownModelError
from dragoman.event import MessageComplete, StreamEvent, fold
from dragoman.fidelity import Tally

PARTS = ("request", "reply", "stream")
FAULTS_OF_COMPLETE_REPLIES = (
    "tool_input_invalid",
    "tool_input_truncated",
    "empty_response",
)  # faults of complete replies
DAMAGE_PREFIX = "damaged, "  # prefix for incomplete streams


class Failure(msgspec.Struct, frozen=True):
    """One part of an exchange that is not equal after the round trip."""

    record: str
    dialect: str
    provider: str
    part: str
    difference: str


class Proof(msgspec.Struct):
    """The counts by dialect, provider and part, the failures, and the records that are damaged themselves."""

    equal: Counter[tuple[str, str, str]]
    failures: list[Failure]
    broken: list[Failure]  # requests that the provider rejected too, streams that are incomplete or end in an error
    unknown: Counter[str] = msgspec.field(default_factory=Counter)  # records by dialect that no dialect of ours reads

    @property
    def is_success(self) -> bool:
        """Whether something was compared, all of it is equal, and every record is of a known dialect."""
        return not self.failures and not self.unknown and sum(self.equal.values()) > 0


def prove(
    records: Path,
    /,
    *,
    dialect: str | None = None,
    json_to: Path | None = None,
    table_to: Path | None = None,
    limit: NonNegative = 20,
) -> int:
    """Verify that recorded traffic is equal after a round trip through the canonical format.

    Parameters
    ----------
    records
        A *.jsonl or *.jsonl.gz file with one exchange per line, or a folder of such files.
    dialect
        Only this dialect.
    json_to
        Write the counts and every failure to this file.
    table_to
        Also translate to every other dialect, and write fidelity.md and fidelity.json to this folder.
    limit
        The maximum number of failures to print.
    """
    console = Console()
    files = [records] if records.is_file() else sorted([*records.glob("*.jsonl"), *records.glob("*.jsonl.gz")])
    if not files:
        problem = "the folder has no *.jsonl or *.jsonl.gz files" if records.is_dir() else "no such file or folder"
        raise InputError(problem, where=str(records))
    proof, tally = Proof(Counter(), [], []), None if table_to is None else Tally()
    if table_to is not None:
        fidelity.make_folder(table_to)
    _prove_files(files, proof, tally, dialect, console)
    console.print(_table(proof))
    for failure in proof.failures[:limit]:
        where = f"{failure.record} {failure.part}"
        console.print(f"[red]{escape(where)}[/red]  {escape(failure.difference)}", soft_wrap=True, highlight=False)
    for failure in proof.broken[:limit]:
        console.print(
            escape(f"{failure.record} is damaged itself: {failure.difference}"), soft_wrap=True, highlight=False
        )
    for name, failures in (("not equal", proof.failures), ("damaged themselves", proof.broken)):
        if failures:
            console.print(f"{len(failures)} {name}{f', {limit} shown' if len(failures) > limit else ''}")
    for name, count in proof.unknown.items():
        console.print(escape(f"{count} records of an unknown dialect: {name}"), soft_wrap=True, highlight=False)
    if json_to is not None:
        rows = [{"dialect": d, "provider": p, "part": part, "equal": n} for (d, p, part), n in proof.equal.items()]
        result = {"equal": rows, "failures": proof.failures, "broken": proof.broken, "unknown": proof.unknown}
        json_to.write_bytes(msgspec.json.encode(result))
    is_success = proof.is_success
    if table_to is not None and tally is not None:
        is_success &= fidelity.print_result(console, fidelity.write_table(table_to, tally), tally, limit)
    return 0 if is_success else 1


def _prove_files(files: list[Path], proof: Proof, tally: Tally | None, dialect: str | None, console: Console) -> None:
    """Prove all files, with a progress bar by bytes."""
    columns = (*Progress.get_default_columns(), TimeElapsedColumn(), TextColumn("{task.fields[shown]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("proving", total=sum(file.stat().st_size for file in files), shown="")
        prove_records(_records_with_progress(files, progress, task), proof, dialect, tally)


def _records_with_progress(files: list[Path], progress: Progress, task: TaskID) -> Iterator[dict[str, Any]]:
    """Yield the records of all files, and update the progress bar."""
    number = before = 0
    for file in files:
        with file.open("rb") as data:
            for record in parse_records(data, file):
                number += 1
                progress.update(task, completed=before + data.tell(), shown=f"{number} records, {file.name}")
                yield record
        before += file.stat().st_size


def read_records(file: Path) -> Iterator[dict[str, Any]]:
    """Read the records of one file."""
    with file.open("rb") as data:
        yield from parse_records(data, file)


def parse_records(data: BinaryIO, file: Path) -> Iterator[dict[str, Any]]:
    """Parse the records of an open file."""
    with gzip.open(data) if file.suffix == ".gz" else nullcontext(data) as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                record["id"], record["dialect"], record["provider"]
            except (ValueError, LookupError, TypeError):
                remedy = "Each line is a JSON object with id, dialect and provider"
                raise InputError("not a recorded exchange", where=f"{file}, line {number}", remedy=remedy) from None
            yield record


def prove_records(
    records: Iterable[dict[str, Any]], proof: Proof, dialect: str | None = None, tally: Tally | None = None
) -> Proof:
    """Prove each record of a supported dialect. Edited records (kind ``doctored``) are ignored."""
    modules = {name: dialects.load(name) for name in dialects.names()}
    dialect_names = dialects.names_in_recordings()
    for record in records:
        name = dialect_names.get(record["dialect"])
        if record.get("kind") == "doctored" or dialect not in (None, name):
            continue
        if name is None:
            proof.unknown[record["dialect"]] += 1
            continue
        if tally is not None:
            fidelity.tally_record(record, name, modules, tally)
        for part, difference in differences(record, modules[name]):
            if difference is None:
                proof.equal[name, record["provider"], part] += 1
                continue
            is_rejected = (
                part == "request" and difference.startswith("FormatError") and (record.get("status") or 0) >= 400
            )
            is_broken = is_rejected or difference.startswith(DAMAGE_PREFIX)
            failure = Failure(record["id"], name, record["provider"], part, difference)
            (proof.broken if is_broken else proof.failures).append(failure)
    return proof


def differences(record: dict[str, Any], dialect: Dialect) -> Iterator[tuple[str, str | None]]:
    """Yield each part of an exchange with the first difference after the round trip."""
    is_success = record.get("status") in (200, None)
    if isinstance(record.get("request"), dict):
        wire = record["request"]
        yield (
            "request",
            _difference_or_error(
                lambda: first_difference(dialect.write_request(dialect.read_request(wire)).wire, wire)
            ),
        )
    if isinstance(record.get("response"), dict) and is_success:
        body = record["response"]
        yield (
            "reply",
            _difference_or_error(lambda: first_difference(dialect.write_reply(dialect.read_reply(body)).wire, body)),
        )
    if record.get("stream") and is_success:
        data, framing = record["stream"].encode("utf-8", "surrogatepass"), record.get("stream_format")
        quirks = _quirks_of(record["provider"], dialect.NAME)
        yield "stream", _difference_or_error(lambda: _stream_difference(data, framing, dialect, quirks))


def _quirks_of(provider: str, dialect: str) -> tuple[str, ...]:
    """Return the quirks of the recorded provider from the catalog."""
    try:
        return catalog.builtin().provider(provider, dialect).quirks
    except UnknownModelError:
        return ()


def _difference_or_error(compare: Callable[[], str | None]) -> str | None:
    try:
        return compare()
    except Exception as error:  # recorded for this part; the next one is tried
        return f"{type(error).__name__}: {error}"


def _stream_difference(data: bytes, framing: str | None, dialect: Dialect, quirks: tuple[str, ...] = ()) -> str | None:
    events = _events(dialect.stream_reader(framing, quirks), [data])
    pieces = [data[start : start + 7] for start in range(0, len(data), 7)]
    if _events(dialect.stream_reader(framing, quirks), pieces) != events:
        return "different events when the bytes are split"
    reply = fold(events)
    is_complete = any(isinstance(event, MessageComplete) for event in events)
    if reply.fault is not None and not (is_complete and reply.fault.code in FAULTS_OF_COMPLETE_REPLIES):
        return f"{DAMAGE_PREFIX}{reply.fault.code}: {reply.fault.message}"
    wire = dialect.write_reply(reply).wire
    difference_again = first_difference(dialect.write_reply(dialect.read_reply(wire)).wire, wire)
    if difference_again is not None:
        return f"second read: {difference_again}"
    writer = dialect.stream_writer()
    new_stream = b"".join([*(writer.feed(event) for event in events), writer.close()])
    new_events = _events(dialect.stream_reader(None, quirks), [new_stream])
    difference = first_difference(dialect.write_reply(fold(new_events)).wire, wire)
    return None if difference is None else f"second stream: {difference}"


def _events(reader: Any, pieces: Iterable[bytes]) -> list[StreamEvent]:
    events = [event for piece in pieces for event in reader.feed(piece)]
    return [*events, *reader.close()]


def first_difference(ours: Any, theirs: Any, where: str = "$") -> str | None:
    """Return the first path where two JSON values differ. Key order is ignored; numbers are compared as written."""
    if type(ours) is not type(theirs):
        return f"{where}: {_short_json(ours)} instead of {_short_json(theirs)}"
    if isinstance(ours, dict):
        for key in theirs:
            if key not in ours:
                return f"{where}: {key!r} is missing: {_short_json(theirs[key])}"
        for key, value in ours.items():
            if key not in theirs:
                return f"{where}: {key!r} was added: {_short_json(value)}"
            inner = first_difference(value, theirs[key], f"{where}.{key}")
            if inner is not None:
                return inner
        return None
    if isinstance(ours, list):
        if len(ours) != len(theirs):
            return f"{where}: {len(ours)} items instead of {len(theirs)}"
        items = enumerate(zip(ours, theirs, strict=True))
        inner_differences = (
            first_difference(our_item, their_item, f"{where}[{index}]") for index, (our_item, their_item) in items
        )
        return next((difference for difference in inner_differences if difference is not None), None)
    return None if repr(ours) == repr(theirs) else f"{where}: {_short_json(ours)} instead of {_short_json(theirs)}"


def _short_json(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _table(proof: Proof) -> Table:
    failure_counts = Counter((failure.dialect, failure.provider, failure.part) for failure in proof.failures)
    table = Table("dialect", "provider", *PARTS, title="Equal after a round trip", title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    for name, provider in sorted({key[:2] for key in [*proof.equal, *failure_counts]}):
        cells = []
        for part in PARTS:
            equal, bad = proof.equal[name, provider, part], failure_counts[name, provider, part]
            text = f"{equal} of {equal + bad}" if equal + bad else "–"
            cells.append(f"[red]{text}[/red]" if bad else text)
        table.add_row(name, provider, *cells)
    return table
