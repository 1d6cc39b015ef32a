"""Strategies for arbitrary values of the message format."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from dragoman.event import StreamEvent
from dragoman.exchange import ErrorClass, Fault, Reply, StopReason
from dragoman.ids import ALPHABET
from dragoman.message import (
    Attachment,
    AudioBlock,
    CacheHint,
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ThinkingBlock,
    TokenLogprob,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    Usage,
    VideoBlock,
)
from dragoman.value import UNSET, RawJson, UnknownFields

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
counts = st.integers(0, 10**9)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6
)
objects: st.SearchStrategy[dict[str, Any]] = st.dictionaries(words, plain, max_size=3)
raws = st.none() | objects
money = st.decimals(min_value=0, max_value=10**6, allow_nan=False, allow_infinity=False)
times = st.datetimes(
    min_value=datetime(1971, 1, 1),  # noqa: DTZ001
    max_value=datetime(9000, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-7, minutes=-30))]),
)
# A small set, so that calls and results match.
tool_ids = st.sampled_from(
    ["tu_01HZ100", "tu_01HZ200", "tu_01ARZ3NDEKTSV4RRFFQ69G5FAV", "toolu_01A", "call_9", "tu_01hz", ""]
)
# Fields of a newer version: names that this version never has, values in any notation.
unknown_values = st.sampled_from([b"1", b'{"a" : 1e2}', b'"\\u0041"', b"[ 1,2 ]", b"null", b'{"type":"text"}'])
unknown_fields = st.just(UNSET) | st.dictionaries(
    st.sampled_from(["x_new", "zeta", "ä"]), unknown_values, min_size=1
).map(UnknownFields)
sources = st.builds(ImageSource, st.sampled_from(["base64", "url", "file_ref"]), texts, unknown_fields=unknown_fields)
unknown_blocks = st.sampled_from(
    [b'{"type":"hologram"}', b'{"type":"smell", "strength":1E1}', b'{"note":{"type":"x"},"type":"unknown_block"}']
).map(lambda data: UnknownBlock(RawJson(data)))


hints = st.none() | st.builds(CacheHint, st.none() | st.sampled_from(["5m", "1h"]))
citations = st.builds(
    Citation,
    start=st.none() | counts,
    end=st.none() | counts,
    url=st.none() | texts,
    title=st.none() | texts,
    unit=st.sampled_from([None, "char", "page", "block"]),
)
logprobs = st.builds(TokenLogprob, texts, st.floats(-100, 0), st.none() | st.lists(st.integers(0, 255)).map(tuple))


def _blocks(*, with_unknown: bool) -> dict[type, st.SearchStrategy[Any]]:
    extra = {"provider_raw": raws, "unknown_fields": unknown_fields if with_unknown else st.just(UNSET)}
    media = sources if with_unknown else st.builds(ImageSource, st.just("url"), texts)
    return {
        TextBlock: st.builds(
            TextBlock,
            texts,
            **extra,
            citations=st.lists(citations, max_size=1).map(tuple),
            token_logprobs=st.lists(logprobs, max_size=1).map(tuple),
            cache_hint=hints,
        ),
        ToolUseBlock: st.builds(ToolUseBlock, tool_ids, texts, objects, **extra, free_form=st.booleans()),
        InvalidToolUseBlock: st.builds(InvalidToolUseBlock, tool_ids, texts, texts, texts, **extra),
        ImageBlock: st.builds(ImageBlock, media, texts, **extra, cache_hint=hints, detail=st.none() | texts),
        DocumentBlock: st.builds(DocumentBlock, media, texts, st.none() | texts, **extra),
        AudioBlock: st.builds(AudioBlock, media, texts, **extra),
        VideoBlock: st.builds(VideoBlock, media, texts, **extra),
        ThinkingBlock: st.builds(ThinkingBlock, texts, st.none() | texts, **extra, is_summary=st.booleans()),
        RedactedThinkingBlock: st.builds(RedactedThinkingBlock, texts, **extra),
        OpaqueBlock: st.builds(OpaqueBlock, words, objects, **extra),
    }


def blocks(*, with_unknown: bool = True) -> st.SearchStrategy[ContentBlock]:
    simple = st.one_of(*_blocks(with_unknown=with_unknown).values())
    if with_unknown:
        simple = simple | unknown_blocks
    results = st.builds(
        ToolResultBlock,
        tool_ids,
        st.lists(simple, max_size=2),
        st.booleans(),
        raws,
        unknown_fields=unknown_fields if with_unknown else st.just(UNSET),
    )
    return simple | results


usages = st.builds(
    Usage,
    input_tokens=counts,
    output_tokens=counts,
    cached_input_tokens=counts,
    cost_usd=money,
    pricing_version=words,
    latency_ms=counts,
    server_tool_calls=st.none() | st.dictionaries(words, counts, max_size=2),
    service_tier=st.none() | words,
    estimated=st.booleans(),
    unknown_fields=unknown_fields,
)
routings = st.builds(
    RoutingDecisionRecord,
    st.sampled_from(RoutingMode),
    words,
    texts,
    st.none() | words,
    st.none() | st.floats(0, 1),
    st.lists(words, max_size=2),
    unknown_fields,
)
optional_texts = st.none() | texts
metadatas = st.builds(
    MessageMetadata,
    model=optional_texts,
    provider=optional_texts,
    routing=st.none() | routings,
    usage=st.none() | usages,
    parent_tool_use_id=st.none() | tool_ids,
    status=st.sampled_from(MessageStatus),
    provider_raw=raws,
    user_id=optional_texts,
    run_id=optional_texts,
    latency_ms=st.none() | counts | st.floats(0, 10**6),
    user_message_attachments=st.lists(st.builds(Attachment, texts, texts, texts), max_size=2),
    critical=st.booleans(),
    extra=raws,
    unknown_fields=unknown_fields,
)
roles = st.sampled_from(Role) | st.just(Role.unknown("critic"))
ulids = st.text(alphabet=ALPHABET, min_size=25, max_size=25).map(lambda tail: f"0{tail}")
messages = st.builds(
    Message,
    ulids,
    st.just("sess_1"),
    roles,
    st.lists(blocks(), max_size=4),
    metadatas,
    times,
    unknown_fields=unknown_fields,
)
# Histories of small parts, many of which match: they test the relations between messages.
short_texts = st.sampled_from(["hi", "", "a\0b"])
_odd_extra = st.sampled_from([None, {}, {"k": ["\0"]}])
small_metadatas = st.builds(
    MessageMetadata,
    model=st.sampled_from([None, "", "a:b", "a\0:b"]),
    provider=st.sampled_from([None, "a"]),
    routing=st.sampled_from([None, RoutingDecisionRecord(RoutingMode.RULE, "a:b", "why\0")]),
    usage=st.sampled_from(
        [None, Usage(input_tokens=1, output_tokens=1, cost_usd=Decimal(1), pricing_version="\0", latency_ms=1)]
    ),
    parent_tool_use_id=st.none() | tool_ids,
    status=st.sampled_from([MessageStatus.COMPLETE] * 3 + [*MessageStatus]),
    run_id=st.none() | short_texts,
    extra=_odd_extra,
    unknown_fields=unknown_fields,
)
_small_block = (
    st.builds(TextBlock, short_texts)
    | st.builds(ToolUseBlock, tool_ids, short_texts, st.just({}))
    | st.builds(InvalidToolUseBlock, tool_ids, short_texts, short_texts, short_texts)
    | st.builds(ThinkingBlock, short_texts)
    | st.just(ImageBlock(ImageSource("url", "x"), "image/png"))
    | unknown_blocks
)
small_blocks = _small_block | st.builds(ToolResultBlock, tool_ids, st.lists(_small_block, max_size=2))
histories = st.lists(
    st.builds(
        Message,
        st.sampled_from(["01A", "01B", "01C", "01D", "01E", "01F", "01\0G"]),
        st.sampled_from(["sess_1"] * 9 + ["sess_2", "sess_\0001"]),
        roles,
        st.lists(small_blocks, max_size=3),
        small_metadatas,
        st.just(datetime(2026, 5, 8, tzinfo=UTC)),
    ),
    max_size=7,
)
token_usages = st.builds(TokenUsage, input_tokens=counts, output_tokens=counts, reasoning_tokens=counts)
faults = st.builds(
    Fault,
    code=words,
    message=texts,
    error_class=st.sampled_from(ErrorClass),
    retryable=st.booleans(),
    retry_after_s=st.none() | st.floats(0, 100),
)
_finished = st.fixed_dictionaries(
    {
        "stop_reason": st.sampled_from([reason for reason in StopReason if reason is not StopReason.ERROR]),
        "stop_sequence": optional_texts,
        "fault": st.none(),
    }
)
_failed = st.fixed_dictionaries({"stop_reason": st.just(StopReason.ERROR), "stop_sequence": st.none(), "fault": faults})
replies = st.builds(
    lambda end, **rest: Reply(**end, **rest),
    _finished | _failed,
    content=st.lists(blocks(), max_size=4),
    usage=st.none() | token_usages,
    model=optional_texts,
    provider_raw=raws,
)
prices = st.decimals(min_value=Decimal(0), max_value=Decimal(1000), places=4)
Events = tuple[StreamEvent, ...]
