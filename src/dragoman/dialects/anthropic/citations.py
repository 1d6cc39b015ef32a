"""Citations of a text: places in documents, search results and web pages.

read_citations(wire) -> citations      empty if an entry has an unknown form
write_citations(citations) -> wire     without the tokens of a search, which are residue
read_cache_hint(wire), write_cache_hint(hint)   the mark ``cache_control``
"""

from __future__ import annotations

from typing import Any, Final

from dragoman.jsontext import integer_or_none, text_or_none
from dragoman.message import CacheHint, Citation

_UNITS: Final = {  # by type of a place in a document: the unit, and the keys of its start and end
    "char_location": ("char", "start_char_index", "end_char_index"),
    "page_location": ("page", "start_page_number", "end_page_number"),
    "content_block_location": ("block", "start_block_index", "end_block_index"),
}
_TYPES: Final = {unit: (kind, start, end) for kind, (unit, start, end) in _UNITS.items()}


def read_citations(wire: Any) -> tuple[Citation, ...]:
    """Return the citations of a text block; none if one of them has an unknown form."""
    if not isinstance(wire, list):
        return ()
    citations = [_read_citation(item) for item in wire]
    return () if None in citations else tuple(citations)  # type: ignore[arg-type]


def _read_citation(wire: Any) -> Citation | None:
    kind = wire.get("type") if isinstance(wire, dict) else None
    if kind in _UNITS:
        unit, start, end = _UNITS[kind]
        return Citation(
            title=text_or_none(wire.get("document_title")),
            cited_text=text_or_none(wire.get("cited_text")),
            document=integer_or_none(wire.get("document_index")),
            unit=unit,  # type: ignore[arg-type]
            source_start=integer_or_none(wire.get(start)),
            source_end=integer_or_none(wire.get(end)),
        )
    if kind == "web_search_result_location":
        return Citation(
            url=text_or_none(wire.get("url")),
            title=text_or_none(wire.get("title")),
            cited_text=text_or_none(wire.get("cited_text")),
        )
    if kind == "search_result_location":
        return Citation(
            title=text_or_none(wire.get("title")),
            cited_text=text_or_none(wire.get("cited_text")),
            source_id=text_or_none(wire.get("source")),
            unit="block",
            source_start=integer_or_none(wire.get("start_block_index")),
            source_end=integer_or_none(wire.get("end_block_index")),
        )
    return None


def write_citations(citations: tuple[Citation, ...]) -> list[dict[str, Any]]:
    """Return the wire of citations."""
    return [_write_citation(citation) for citation in citations]


def _write_citation(citation: Citation) -> dict[str, Any]:
    cited_text = citation.cited_text or ""
    if citation.url is not None:
        wire = {"type": "web_search_result_location", "cited_text": cited_text, "url": citation.url}
        return {**wire, "title": citation.title, "encrypted_index": ""}
    if citation.document is None:
        return {
            "type": "search_result_location",
            "cited_text": cited_text,
            "source": citation.source_id or "",
            "title": citation.title,
            "search_result_index": 0,
            "start_block_index": citation.source_start or 0,
            "end_block_index": citation.source_end or 0,
        }
    kind, start, end = _TYPES[citation.unit or "char"]
    return {
        "type": kind,
        "cited_text": cited_text,
        "document_index": citation.document,
        "document_title": citation.title,
        start: citation.source_start or 0,
        end: citation.source_end or 0,
    }


def read_cache_hint(wire: Any) -> CacheHint | None:
    """Return the hint of a ``cache_control``."""
    if not isinstance(wire, dict) or wire.get("type") != "ephemeral":
        return None
    return CacheHint(text_or_none(wire.get("ttl")))


def write_cache_hint(hint: CacheHint | None) -> dict[str, Any]:
    """Return the field ``cache_control``; nothing without a hint."""
    if hint is None:
        return {}
    ttl = {"ttl": hint.ttl} if hint.ttl is not None else {}
    return {"cache_control": {"type": "ephemeral", **ttl}}
