"""Citations of an answer: places in its texts and its plan, each with its sources.

read_citations(wire) -> citations          one for each source, with the wire of its place
write_citations(text, citations, place)    one for each place of a text
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dragoman.jsontext import integer_or_none, list_or_empty, text_or_none
from dragoman.message import Citation

PLAN: Final = {"type": "PLAN"}  # the place of a citation in the plan


def read_citations(wire: Any) -> list[tuple[dict[str, Any], Citation]]:
    """Return the citations of an answer, each with its wire."""
    citations: list[tuple[dict[str, Any], Citation]] = []
    for item in list_or_empty(wire):
        if not isinstance(item, dict):
            return []
        start, end = integer_or_none(item.get("start")), integer_or_none(item.get("end"))
        for source in list_or_empty(item.get("sources")):
            if not isinstance(source, dict):
                return []
            document = source.get("document")
            document = document if isinstance(document, dict) else {}
            citation = Citation(
                start=start,
                end=end,
                url=text_or_none(document.get("url")),
                title=text_or_none(document.get("title")),
                source_id=text_or_none(source.get("id")),
            )
            citations.append((item, citation))
    return citations


def place_of_part(index: int) -> dict[str, Any]:
    """Return the fields that name a text by its index; the first part needs none."""
    return {**({"content_index": index} if index else {}), "type": "TEXT_CONTENT"}


def write_citations(text: str, citations: Iterable[Citation], place: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the citations of a text; sources of one place are together.

    A place after the end of the text has no text; its start and end locate it. The reader of a stream passes only the
    beginning of a text.
    """
    wire: list[dict[str, Any]] = []
    for citation in citations:
        start = citation.start if citation.start is not None else 0
        end = citation.end if citation.end is not None else len(text)
        source = _write_source(citation)
        if wire and (wire[-1]["start"], wire[-1]["end"]) == (start, end):
            wire[-1]["sources"].append(source)
        else:
            cited = {"text": text[start:end]} if end <= len(text) else {}
            wire.append({"start": start, "end": end, **cited, "sources": [source], **place})
    return wire


def _write_source(citation: Citation) -> dict[str, Any]:
    document = {"title": citation.title, "url": citation.url, "snippet": citation.cited_text}
    fields = {key: value for key, value in document.items() if value is not None}
    wire: dict[str, Any] = {"type": "document", "id": citation.source_id or citation.url or ""}
    return {**wire, "document": fields} if fields else wire
