"""Citations and token probabilities of a candidate.

    read_citations(candidate, texts)          the citations of each text of the candidate
    write_grounding(texts)                    ``groundingMetadata`` for texts with citations; ``None`` without
    read_logprobs(candidate)                  token probabilities
    write_logprobs(logprobs)                  ``logprobsResult``; ``None`` without

A place in a text is counted in characters here and in bytes of UTF-8 on the wire. A source with several places is
one chunk on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dragoman.jsontext import has_lone_surrogate, is_number, list_or_empty, text_or_none
from dragoman.message import Citation, TextBlock, TokenLogprob


def read_citations(candidate: dict[str, Any], texts: list[str]) -> list[tuple[Citation, ...]]:
    """Return the citations of each text; a part without an index is the only text."""
    citations: list[list[Citation]] = [[] for _ in texts]
    grounding = candidate.get("groundingMetadata")
    if not isinstance(grounding, dict) or not texts:
        return [() for _ in texts]
    sources = [_read_source(chunk) for chunk in list_or_empty(grounding.get("groundingChunks"))]
    for support in list_or_empty(grounding.get("groundingSupports")):
        segment = support.get("segment") if isinstance(support, dict) else None
        if not isinstance(segment, dict):
            continue
        at = _text_number(segment, texts)
        if at is None:
            continue
        start = _to_character(texts[at], segment.get("startIndex", 0))
        end = _to_character(texts[at], segment.get("endIndex"))
        for number in list_or_empty(support.get("groundingChunkIndices")):
            source = sources[number] if type(number) is int and 0 <= number < len(sources) else None
            if source is not None:
                citations[at].append(source.replace(start=start, end=end))
    return [tuple(items) for items in citations]


def _text_number(segment: dict[str, Any], texts: list[str]) -> int | None:
    """Return the text of a segment: by its index, else the first one that contains it."""
    quoted = segment.get("text")
    if isinstance(quoted, str) and quoted:
        return next((at for at, text in enumerate(texts) if quoted in text), None)
    return 0 if len(texts) == 1 else None


def _read_source(chunk: Any) -> Citation | None:
    match chunk:
        case {"web": {"uri": str(url)} as web}:
            return Citation(url=url, title=text_or_none(web.get("title")))
        case {"retrievedContext": dict(context)}:
            return Citation(
                url=text_or_none(context.get("uri")),
                title=text_or_none(context.get("title")),
                cited_text=text_or_none(context.get("text")),
                source_id=text_or_none(context.get("fileSearchStore")),
            )
        case _:
            return None


def _to_character(text: str, offset: Any) -> int | None:
    """Return the number of characters in the first bytes of a text."""
    if type(offset) is not int or offset < 0:
        return None
    return len(text.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "ignore"))


def write_grounding(texts: Iterable[TextBlock]) -> dict[str, Any] | None:
    """Return the sources and supported segments of texts; ``None`` without citations."""
    chunks: list[dict[str, Any]] = []
    supports: list[dict[str, Any]] = []
    for block in texts:
        for citation in block.citations:
            chunk = _write_source(citation)
            if chunk not in chunks:
                chunks.append(chunk)
            _add_support(supports, block.text, citation, chunks.index(chunk))
    return {"groundingChunks": chunks, "groundingSupports": supports} if chunks else None


def _add_support(supports: list[dict[str, Any]], text: str, citation: Citation, source: int) -> None:
    """Add a segment, or a further source of the last one."""
    start = citation.start if citation.start is not None else 0
    end = citation.end if citation.end is not None else len(text)
    before, quoted = text[:start].encode("utf-8", "surrogatepass"), text[start:end]
    segment: dict[str, Any] = {"startIndex": len(before)} if before else {}
    segment.update(endIndex=len(before) + len(quoted.encode("utf-8", "surrogatepass")), text=quoted)
    if supports and supports[-1]["segment"] == segment:
        supports[-1]["groundingChunkIndices"].append(source)
    else:
        supports.append({"segment": segment, "groundingChunkIndices": [source]})


def _write_source(citation: Citation) -> dict[str, Any]:
    title = {"title": citation.title} if citation.title is not None else {}
    if citation.url is not None and citation.source_id is None and citation.cited_text is None:
        return {"web": {"uri": citation.url, **title}}
    fields = {"uri": citation.url, "text": citation.cited_text, "fileSearchStore": citation.source_id}
    return {"retrievedContext": {**title, **{key: value for key, value in fields.items() if value is not None}}}


def read_logprobs(candidate: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    """Return the probabilities of the chosen tokens; none if one of them has another form."""
    result = candidate.get("logprobsResult")
    if not isinstance(result, dict):
        return ()
    chosen = [_read_token(item) for item in list_or_empty(result.get("chosenCandidates"))]
    tops = list_or_empty(result.get("topCandidates"))
    if None in chosen:
        return ()
    rows = [list_or_empty(item.get("candidates")) if isinstance(item, dict) else [] for item in tops]
    rows += [[]] * (len(chosen) - len(rows))
    return tuple(_with_top(token, row) for token, row in zip(chosen, rows, strict=False) if token is not None)


def _with_top(token: TokenLogprob, row: list[Any]) -> TokenLogprob:
    top = [_read_token(item) for item in row]
    return token.replace(top=tuple(item for item in top if item is not None)) if top else token


def _read_token(item: Any) -> TokenLogprob | None:
    match item:
        case {"token": str(token), "logProbability": logprob} if is_number(logprob) and not has_lone_surrogate(token):
            return TokenLogprob(token, logprob)
        case _:
            return None


def write_logprobs(logprobs: Iterable[TokenLogprob]) -> dict[str, Any] | None:
    """Return ``logprobsResult``; ``None`` without probabilities."""
    items = tuple(logprobs)
    if not items:
        return None
    wire: dict[str, Any] = {"chosenCandidates": [_write_token(item) for item in items]}
    if any(item.top for item in items):
        wire["topCandidates"] = [{"candidates": [_write_token(top) for top in item.top]} for item in items]
    return wire


def _write_token(item: TokenLogprob) -> dict[str, Any]:
    return {"token": item.token, "logProbability": item.logprob}
