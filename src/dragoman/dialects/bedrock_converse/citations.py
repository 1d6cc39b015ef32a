"""Citations of a text, and cache points, which follow the block or the tool that they belong to.

read_citations(wire) -> citations         empty if an entry has an unknown form
write_citations(citations) -> wire
split_cache_points(items) -> pairs        each item with the cache point that follows it
read_cache_point(wire), write_cache_point(hint)
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from dragoman.jsontext import integer_or_none, list_or_empty, read_items, text_or_none
from dragoman.message import CacheHint, Citation

_UNITS: Final = {"documentChar": "char", "documentPage": "page", "documentChunk": "block"}
_LOCATIONS: Final = {unit: name for name, unit in _UNITS.items()}
POINT: Final = "cachePoint"


def read_citations(wire: Any) -> tuple[Citation, ...]:
    """Return the citations of a text; none if one of them has an unknown form."""
    return read_items(wire, _read_citation)


def _read_citation(wire: Any) -> Citation | None:
    location = wire.get("location") if isinstance(wire, dict) else None
    if not isinstance(location, dict) or len(location) != 1:
        return None
    kind, place = next(iter(location.items()))
    if not isinstance(place, dict):
        return None
    texts = [text_or_none(part.get("text")) for part in list_or_empty(wire.get("sourceContent")) if type(part) is dict]
    title, cited_text = text_or_none(wire.get("title")), texts[0] if len(texts) == 1 else None
    if kind == "web" and isinstance(place.get("url"), str):
        return Citation(url=place["url"], title=title, cited_text=cited_text)
    if kind not in _UNITS:
        return None
    return Citation(
        title=title,
        cited_text=cited_text,
        document=integer_or_none(place.get("documentIndex")),
        unit=_UNITS[kind],  # type: ignore[arg-type]
        source_start=integer_or_none(place.get("start")),
        source_end=integer_or_none(place.get("end")),
    )


def write_citations(citations: tuple[Citation, ...]) -> list[dict[str, Any]]:
    """Return the wire of citations."""
    return [_write_citation(citation) for citation in citations]


def _write_citation(citation: Citation) -> dict[str, Any]:
    wire: dict[str, Any] = {"title": citation.title} if citation.title is not None else {}
    if citation.cited_text is not None:
        wire["sourceContent"] = [{"text": citation.cited_text}]
    if citation.url is not None:
        wire["location"] = {"web": {"url": citation.url, "domain": urlsplit(citation.url).hostname or ""}}
        return wire
    place = {
        "documentIndex": citation.document or 0,
        "start": citation.source_start or 0,
        "end": citation.source_end or 0,
    }
    wire["location"] = {_LOCATIONS[citation.unit or "char"]: place}
    return wire


def split_cache_points(items: list[dict[str, Any]]) -> list[tuple[dict[str, Any], CacheHint | None]]:
    """Return each item with the hint of the cache point that follows it. A cache point elsewhere stays an item."""
    pairs: list[tuple[dict[str, Any], CacheHint | None]] = []
    for item in items:
        hint = read_cache_point(item)
        if hint is not None and pairs and pairs[-1][1] is None and not set(pairs[-1][0]) & _WITHOUT_POINT:
            pairs[-1] = (pairs[-1][0], hint)
        else:
            pairs.append((item, None))
    return pairs


_WITHOUT_POINT: Final = frozenset({POINT, "reasoningContent", "guardContent", "systemTool", "citationsContent"})


def read_cache_point(wire: dict[str, Any]) -> CacheHint | None:
    """Return the hint of a cache point in the form that ``write_cache_point`` returns."""
    match wire:
        case {"cachePoint": {"type": "default"} as point} if len(wire) == 1 and set(point) <= {"type", "ttl"}:
            ttl = point.get("ttl")
            return CacheHint(ttl) if isinstance(ttl, str | None) and ("ttl" not in point or ttl is not None) else None
        case _:
            return None


def write_cache_point(hint: CacheHint) -> dict[str, Any]:
    """Return the cache point of a hint."""
    return {POINT: {"type": "default", **({"ttl": hint.ttl} if hint.ttl is not None else {})}}
