"""Citations in the form that both OpenAI APIs share: web pages with a place in the text.

read_url_citation(fields) -> citation      ``None`` without an address
write_url_citation(citation, text) -> fields
"""

from __future__ import annotations

from typing import Any

from dragoman.jsontext import integer_or_none, text_or_none
from dragoman.message import Citation


def read_url_citation(fields: Any) -> Citation | None:
    """Return the citation of a web page."""
    if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
        return None
    return Citation(
        start=integer_or_none(fields.get("start_index")),
        end=integer_or_none(fields.get("end_index")),
        url=fields["url"],
        title=text_or_none(fields.get("title")),
    )


def write_url_citation(citation: Citation, text: str) -> dict[str, Any]:
    """Return the fields of a citation; without a place it is about the whole text."""
    return {
        "start_index": citation.start if citation.start is not None else 0,
        "end_index": citation.end if citation.end is not None else len(text),
        "url": citation.url or "",
        "title": citation.title or "",
    }
