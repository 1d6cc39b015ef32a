"""Format results: Markdown tables, and plain values for JSON. Every result is included.

cells_to_markdown(cells)      a table per source: a row per case, a column per target
tally_to_summary(tally)       a table for requests and one for answers: a row per target, what arrived of how many
tally_to_markdown(tally)      a table per source: a row per target, a column per group of kinds
to_plain(cells, tally)        everything, for JSON
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from dragoman.fidelity.measure import Cell, Tally

# Columns by kind; blocks inside a result are counted with the others.
_GROUPS: Final = {
    "text": "texts",
    "system": "texts",
    "tool_use": "calls",
    "invalid_tool_use": "calls",
    "tool_result": "results",
    "tool_result.is_error": "marked as failed",
    "image": "images",
    "document": "documents",
    "document.name": "names of these",
    "audio": "audio, video",
    "video": "audio, video",
    "thinking": "reasoning",
    "redacted_thinking": "reasoning",
    "thinking.signature": "signatures",
    "tool": "tools",
    "server_tool": "tools",
    "block": "hints",
    "opaque": "opaque",
    "opaque_tool": "opaque",
    "options": "options",
    "aside": "own words",
    "answer.text": "answers: texts, calls",
    "answer.tool_use": "answers: texts, calls",
    "answer": "answers: other blocks",
    "answer.stop_reason": "answers: end",
    "answer.stop_sequence": "answers: end",
    "answer.model": "answers: model",
    "answer.usage": "answers: counts",
}
_COLUMNS: Final = (*dict.fromkeys(_GROUPS.values()), "other")


def cells_to_markdown(cells: Iterable[Cell], links: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Yield lines of Markdown: for each source, the result of each case in each target.

    ``links`` are the API references of the targets. They follow the table.
    """
    by_source: dict[str, list[Cell]] = {}
    for cell in cells:
        by_source.setdefault(cell.source, []).append(cell)
    for source, row in by_source.items():
        yield f"### From {source}"
        yield ""
        yield from _source_table(row, links)


def _source_table(cells: Sequence[Cell], links: Mapping[str, str]) -> Iterator[str]:
    targets = list(dict.fromkeys(cell.target for cell in cells))
    numbers: dict[str, int] = {}
    lines: dict[str, list[str]] = {}
    for cell in cells:
        marks = [str(numbers.setdefault(note, len(numbers) + 1)) for note in cell.notes]
        verdict: str = "–" if cell.verdict == "n/a" else cell.verdict
        if cell.verdict == "loss" and cell.target in links:
            verdict = f"[loss][{cell.target}]"
        lines.setdefault(cell.case, []).append(f"{verdict} ({', '.join(marks)})" if marks else verdict)
    yield f"| | {' | '.join(f'`{target}`' for target in targets)} |"
    yield f"|---{'|---' * len(targets)}|"
    unsupported = [case for case, line in lines.items() if set(line) == {"–"}]
    for case, line in lines.items():
        if case not in unsupported:
            yield f"| {case} | {' | '.join(line)} |"
    yield ""
    if unsupported:
        yield f"Not supported by this source: {'; '.join(unsupported)}."
        yield ""
    for note, number in numbers.items():
        yield f"{number}. {_escape(note)}"
    if numbers:
        yield ""


def _escape(note: str) -> str:
    return note.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def cells_to_summary(cells: Iterable[Cell]) -> Iterator[str]:
    """Yield lines of Markdown: for each ordered pair, the number of kept, changed, ignored and lost cases."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for cell in cells:
        counts.setdefault((cell.source, cell.target), Counter())[cell.verdict] += 1
    names = list(dict.fromkeys(source for source, _ in counts))
    yield f"| from \\ to | {' | '.join(f'`{name}`' for name in names)} |"
    yield f"|---{'|---' * len(names)}|"
    for source in names:
        yield f"| `{source}` | {' | '.join(_format_counts(counts[source, target]) for target in names)} |"


def _format_counts(counts: Counter[str]) -> str:
    if counts["exact"]:
        return f"{counts['exact']} exact"
    numbers = f"{counts['kept']} / {counts['changed']} / {counts['hint']} / {counts['loss']}"
    return f"{numbers} / **{counts['silent']} silent**" if counts["silent"] else numbers


# Columns of the summary, and the kinds that each counts; a kind that ends in a dot stands for all that begin with it.
_SUMMARY_OF_REQUESTS: Final = {
    "texts": ("text", "system", "tool_result.text"),
    "calls": ("tool_use", "invalid_tool_use"),
    "results": ("tool_result",),
    "tools": ("tool",),
    "images": ("image", "tool_result.image"),
    "documents": ("document", "tool_result.document"),
    "their names": ("document.name", "tool_result.document.name"),
    "audio, video": ("audio", "video", "tool_result.audio", "tool_result.video"),
    "error flags": ("tool_result.is_error",),
    "options": ("options.",),
}
_SUMMARY_OF_ANSWERS: Final = {
    "texts and calls": ("answer.text", "answer.tool_use"),
    "stop reason": ("answer.stop_reason",),
    "model": ("answer.model",),
    "counts": ("answer.usage.",),
}


def tally_to_summary(tally: Tally) -> Iterator[str]:
    """Yield lines of Markdown: for each target, how much of all given requests and answers was kept or changed."""
    yield from _summary_table("requests to", _SUMMARY_OF_REQUESTS, tally)
    yield ""
    yield from _summary_table("answers to", _SUMMARY_OF_ANSWERS, tally)


def _summary_table(head: str, columns: Mapping[str, tuple[str, ...]], tally: Tally) -> Iterator[str]:
    totals: dict[str, dict[str, Counter[str]]] = {}
    for (_, target, kind, outcome), count in sorted(tally.counts.items()):
        for column, kinds in columns.items():
            if kind in kinds or any(prefix[-1] == "." and kind.startswith(prefix) for prefix in kinds):
                totals.setdefault(target, {}).setdefault(column, Counter())[outcome] += count
    yield f"| {head} | {' | '.join(columns)} |"
    yield f"|---{'|---:' * len(columns)}|"
    for target, cells in sorted(totals.items()):
        yield f"| `{target}` | {' | '.join(_format_share(cells.get(column, Counter())) for column in columns)} |"


def _format_share(counts: Counter[str]) -> str:
    arrived, total = counts["kept"] + counts["changed"], counts.total() - counts["hint"]
    return f"{arrived:,}" if arrived == total else f"{arrived:,} of {total:,}"


def tally_to_markdown(tally: Tally) -> Iterator[str]:
    """Yield lines of Markdown: for each source and target, the results of the given requests."""
    grouped: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for (source, target, kind, outcome), count in sorted(tally.counts.items()):
        if outcome != "hint":
            columns = grouped.setdefault((source, target), {})
            columns.setdefault(column_of(kind), Counter())[outcome] += count
    for source in sorted({*tally.requests, *tally.answers}):
        rows = {target: columns for (name, target), columns in grouped.items() if name == source}
        visible = [column for column in _COLUMNS if any(column in columns for columns in rows.values())]
        yield f"### {tally.requests[source]:,} requests and {tally.answers[source]:,} answers of {source}"
        yield ""
        yield f"| to | {' | '.join(visible)} |"
        yield f"|---{'|---:' * len(visible)}|"
        for target, columns in rows.items():
            yield f"| `{target}` | {' | '.join(_format_amount(columns.get(column, Counter())) for column in visible)} |"
        yield ""


def column_of(kind: str) -> str:
    """Return the column of a kind."""
    inner_kind = kind.removeprefix("tool_result.")
    if kind != inner_kind and kind not in _GROUPS:
        return column_of(inner_kind)
    parts = kind.split(".")
    prefixes = (_GROUPS.get(".".join(parts[:count])) for count in range(len(parts), 0, -1))
    return next((group for group in prefixes if group is not None), "other")


def _format_amount(counts: Counter[str]) -> str:
    if not counts:
        return "–"
    parts = [f"{counts['kept']:,}"]
    if counts["changed"]:
        parts.append(f"{counts['changed']:,} changed")
    if counts["loss"]:
        parts.append(f"{counts['loss']:,} lost")
    if counts["silent"]:
        parts.append(f"**{counts['silent']:,} silent**")
    return ", ".join(parts)


def to_plain(cells: Sequence[Cell], tally: Tally | None) -> dict[str, Any]:
    """Return everything as plain values."""
    result: dict[str, Any] = {"cells": list(cells)}
    if tally is not None:
        result["requests"], result["answers"] = dict(tally.requests), dict(tally.answers)
        result["counts"] = [
            {"source": source, "target": target, "kind": kind, "outcome": outcome, "count": count}
            for (source, target, kind, outcome), count in sorted(tally.counts.items())
        ]
        result["notes"] = [
            {"source": source, "target": target, "kind": kind, "outcome": outcome, "note": note, "count": count}
            for (source, target, kind, outcome, note), count in sorted(tally.notes.items())
        ]
        result["shortfalls"] = tally.shortfalls
    return result
