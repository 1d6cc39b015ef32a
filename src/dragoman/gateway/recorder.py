"""Record calls: the conversation as one session that grows, with tools, options, usage and cost of every answer.

    row = await Recorder(services).record(exchange)

A call continues the session whose transcript it repeats: the one that its client names in a header, else the longest
known transcript of the caller with an answer in it. A transcript that differs from the stored one is a fork at the last
message that both have. A worker that a client names is a fork of its session without shared messages.

Invariants: a message is stored once. A call without any content leaves no message. What is stored belongs to the owner
of the caller's key.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import tokens
from dragoman.adapter import Adapter, RequestContext
from dragoman.errors import DragomanError
from dragoman.exchange import Reply, Request, ToolDefinition
from dragoman.gateway import session_chain
from dragoman.gateway.request_record import RequestRecord, record_request
from dragoman.gateway.session_chain import SessionKey
from dragoman.gateway.types import Caller
from dragoman.ids import ToolIds
from dragoman.message import (
    CallBlock,
    ContentBlock,
    InvalidToolUseBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ThinkingBlock,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
)
from dragoman.offload import run_off_loop
from dragoman.store import Session
from dragoman.store.gateway_calls import GatewayCall, GatewayRow, NewPlace, PlainSession, TranscriptPlace
from dragoman.store.operation import Gather
from dragoman.turn.services import AgentServices
from dragoman.value import unvalidated

if TYPE_CHECKING:
    from dragoman.gateway.chat_call import Exchange
    from dragoman.gateway.client_request import ClientRequest

_MAX_TITLE: Final = 80
_GATHER_S: Final = 0.005  # at most, of calls that wait for others
_make_message: Final = unvalidated(Message)  # the parts of a request were validated when it was read
_SIGNING: Final = ("anthropic", "bedrock_converse", "gemini", "openai_responses")  # dialects with signatures
_HIDDEN: Final = "[redacted]"
_CONTEXT: Final = re.compile(r"\s*<([a-z_-]+)>.*</\1>\s*", re.DOTALL)
_log: Final = logging.getLogger("dragoman.gateway")


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation of a request, and the hashes of its prefixes."""

    system: tuple[Message, ...]
    messages: tuple[Message, ...]
    hashes: list[bytes]
    system_hash: bytes | None
    key: SessionKey | None

    def candidates(self) -> list[bytes]:
        """Return the hashes by which a stored session may be found: without a name it needs an answer."""
        if self.key is not None:
            return self.hashes
        first = next((at for at, message in enumerate(self.messages) if message.role is Role.ASSISTANT), None)
        return [] if first is None else self.hashes[first + 1 :]


class ReservedSession(msgspec.Struct, frozen=True):
    """Where a call will be recorded: in a session that it continues, or in a new one."""

    id: str
    new_id: str  # of the new session, or of a fork if another call is recorded first


class Recorder:
    """Stores finished calls."""

    def __init__(self, services: AgentServices) -> None:
        self._services = services
        self._store = services.store

    async def record(self, exchange: Exchange, active_calls: int = 0) -> GatewayRow | None:
        """Store a call. A failure of the store is logged; the caller has the answer already.

        It waits a little for most of the other active calls, so that they share a commit. The rest keeps the processor
        busy during the sync.
        """
        if exchange.canonical is None or exchange.transcript is None or not exchange.reply.content:
            return None
        try:
            return await self._record(exchange, exchange.canonical, exchange.transcript, _gather(active_calls))
        except DragomanError as error:
            _log_failure(exchange.client_request.request.request_id, error)
            return None

    async def record_plain(
        self, make_session: Callable[[], PlainSession], request_id: str, active_calls: int = 0
    ) -> GatewayRow | None:
        """Do the same for a call whose rows ``make_session`` makes, also if the caller is cancelled meanwhile."""
        try:
            return await self._store.gateway.record_plain(make_session, _gather(active_calls))
        except DragomanError as error:
            _log_failure(request_id, error)
            return None

    async def _record(
        self, exchange: Exchange, canonical: Request, transcript: Transcript, gather: Gather
    ) -> GatewayRow:
        caller = exchange.client_request.request.caller
        is_redacted = caller.recording == "redacted"
        request = None if is_redacted else await _record_request(exchange.client_request, canonical)
        place = await self._find_place(transcript)
        parent = await self._find_parent(exchange, transcript) if place is None else None
        session = self._new_session(exchange, transcript)
        shared = 0 if place is None else transcript.hashes.index(place.hash)
        question = self._own_messages(transcript, shared, place, session.id)
        messages = (*question, self._make_answer(exchange, canonical, request, session.id))  # with the greatest id
        if is_redacted:
            session = msgspec.structs.replace(session, title=None)
            messages = tuple(hide_content(message) for message in messages)
        call = GatewayCall(
            session=session,
            continues=place,
            parent=parent,
            messages=messages,
            places=_new_places(transcript, exchange.reply, messages, is_new=place is None),
            owner=owner_digest(caller.user_id, caller.team_id),
            stored_object=exchange.stored_response,
            request_parts=request.parts if request is not None else {},
        )
        return await self._store.gateway.record(call, gather)

    async def reserve_session(self, transcript: Transcript) -> ReservedSession | None:
        """Return where a call will be recorded, before its answer is known; none if the store fails."""
        new_id = f"sess_{self._store.new_id()}"
        try:
            place = await self._find_place(transcript)
            session = await self._store.get_session(place.session_id) if place is not None else None
        except DragomanError as error:
            _log.warning("the session of a call is unknown: %s", error)
            return None
        is_continued = place is not None and session is not None and session.last_seq == place.seq > 0
        return ReservedSession(session.id if session is not None and is_continued else new_id, new_id)

    async def restore_answers(
        self,
        client_request: ClientRequest,
        canonical: Request,
        dialect: str,
        read: Callable[[Request], Transcript],
    ) -> Request:
        """Return a request whose answers since the last question have the reasoning and signatures of their provider.

        Clients of other APIs cannot repeat them, and providers demand them between a call and its result. Only answers
        of the same dialect are restored, and only if the store has the conversation. A failure of the store changes
        nothing.
        """
        latest = _latest_answers(canonical.messages)
        if dialect not in _SIGNING or client_request.request.caller.recording != "on" or not latest:
            return canonical
        try:
            transcript = read(canonical)
            place = await self._find_place(transcript)
            if place is None:
                return canonical
            count = transcript.hashes.index(place.hash)
            rows = await self._store.read_before(place.session_id, place.seq + 1, limit=latest)
        except DragomanError as error:
            _log.warning("answers were not restored: %s", error)
            return canonical
        stored = [row.message for row in rows if row.message.role is Role.ASSISTANT]
        restored = restore_messages(transcript.messages[:count], stored, dialect)
        messages = (*transcript.system, *restored, *transcript.messages[count:])
        return canonical.replace(messages=messages)

    async def _find_place(self, transcript: Transcript) -> TranscriptPlace | None:
        candidates = transcript.candidates()
        return await self._store.gateway.find(candidates) if candidates else None

    async def _find_parent(self, exchange: Exchange, transcript: Transcript) -> TranscriptPlace | None:
        """Return the session that started the worker of a call."""
        parent_key = transcript.key.parent_key if transcript.key is not None else None
        if parent_key is None:
            return None
        caller = exchange.client_request.request.caller
        return await self._store.gateway.find([session_chain.seed_of(caller, parent_key)])

    def _new_session(self, exchange: Exchange, transcript: Transcript) -> Session:
        now, caller = self._store.clock(), exchange.client_request.request.caller
        request = exchange.client_request
        details = client_details(request.reply_dialect, request.request.headers.get("user-agent"))
        if transcript.key is not None:
            details["session"] = transcript.key.session
            if transcript.key.worker:
                details["worker"] = transcript.key.worker
        return Session(
            id=exchange.new_session_id or f"sess_{self._store.new_id()}",
            title=_title(transcript.messages),
            user_id=caller.user_id,
            team_id=caller.team_id,
            metadata={"gateway": details},
            created_at=now,
            updated_at=now,
        )

    def _own_messages(
        self, transcript: Transcript, shared: int, place: TranscriptPlace | None, session_id: str
    ) -> tuple[Message, ...]:
        """Return the messages of the request that are not stored yet, with ids of their own."""
        has_new_system = place is None or place.system_hash != transcript.system_hash
        new = (*(transcript.system if has_new_system else ()), *transcript.messages[shared:])
        call_ids = _map_calls(transcript.messages[:shared], place)
        now = self._store.clock()
        return tuple([self._own_message(message, session_id, call_ids, now) for message in new])

    def _own_message(self, message: Message, session_id: str, call_ids: dict[str, str], now: Any) -> Message:
        content = tuple([self._own_block(block, call_ids) for block in message.content])
        return _make_message(self._store.new_id(), session_id, message.role, content, message.metadata, now)

    def _own_block(self, block: ContentBlock, call_ids: dict[str, str]) -> ContentBlock:
        """Return a block with an id of a call that is unique in its session."""
        if isinstance(block, CallBlock):
            call_ids[block.id] = f"tu_{self._store.new_id()}"
            return block.replace(id=call_ids[block.id])
        if isinstance(block, ToolResultBlock) and block.tool_use_id in call_ids:
            return block.replace(tool_use_id=call_ids[block.tool_use_id])
        return block

    def _make_answer(
        self, exchange: Exchange, canonical: Request, request: RequestRecord | None, session_id: str
    ) -> Message:
        """Return the answer as a message, with its request, its usage, its cost and the losses of the translation."""
        services, target, reply = self._services, exchange.target, exchange.reply
        counts = count_usage(canonical, reply, is_cut=exchange.is_cancelled or reply.fault is not None)
        usage = services.price_usage(target.model, counts, exchange.started_at, exchange.latency_ms)
        routing = describe_choice(exchange.reason, exchange.client_request.model, target.model.id)
        context = RequestContext(
            session_id=session_id,
            message_id=self._store.new_id(),
            created_at=self._store.clock(),
            routing=routing,
            usage=usage,
        )
        status = MessageStatus.CANCELLED if exchange.is_cancelled else None
        message = Adapter(target.provider, target.model, ToolIds()).make_message(reply, context, status)
        fields = request.fields if request is not None else None
        metadata = own_metadata(message.metadata, exchange.client_request.request.caller, fields, exchange.losses)
        return msgspec.structs.replace(message, metadata=metadata)


def _gather(active_calls: int) -> Gather:
    return Gather(active_calls * 3 // 4, _GATHER_S)


def _log_failure(request_id: str, error: DragomanError) -> None:
    _log.error("a call was not recorded: %s", error, extra={"request_id": request_id})


def client_details(dialect: str, agent: str | None) -> dict[str, str]:
    """Return what a session tells about the client that started it."""
    return {"dialect": dialect} if agent is None else {"dialect": dialect, "client": agent[:200]}


async def _record_request(client_request: ClientRequest, canonical: Request) -> RequestRecord:
    if client_request.stream and not canonical.options.stream:  # by the path, or by default
        canonical = canonical.replace(options=canonical.options.replace(stream=True))
    return await run_off_loop(len(client_request.request.body), record_request, canonical)


def own_metadata(
    metadata: MessageMetadata, caller: Caller, request: dict[str, Any] | None, losses: Sequence[str]
) -> MessageMetadata:
    """Return the metadata of an answer with its caller, to whom its cost belongs, its request, and its losses."""
    extra = call_notes(request, losses) or metadata.extra
    return msgspec.structs.replace(metadata, user_id=caller.user_id, team_id=caller.team_id, extra=extra)


def call_notes(request: dict[str, Any] | None, losses: Sequence[str]) -> dict[str, Any] | None:
    """Return what the metadata of an answer says about its request, and about the losses of its translation."""
    notes: dict[str, Any] = {} if request is None else {"request": request}
    if losses:
        notes["losses"] = list(losses)
    return {"gateway": notes} if notes else None


@functools.lru_cache(maxsize=256)
def describe_choice(reason: str, name: str, model_id: str) -> RoutingDecisionRecord:
    """Return the record of why a name of a caller was resolved to a model."""
    mode = RoutingMode.RULE if reason in ("route", "pattern") else RoutingMode.OVERRIDE
    rule_name = name if mode is RoutingMode.RULE else None
    return RoutingDecisionRecord(mode, model_id, f"gateway: {reason} of {name}", rule_name=rule_name)


def read_transcript(client_request: ClientRequest, canonical: Request) -> Transcript:
    """Return the conversation of a request."""
    request = client_request.request
    key = session_chain.session_key(request.headers)
    system, messages = session_chain.split_system(canonical.messages)
    hashes = session_chain.chain_hashes(session_chain.seed_of(request.caller, key), messages)
    return Transcript(
        system=system, messages=messages, hashes=hashes, system_hash=session_chain.hash_system(system), key=key
    )


def restore_messages(messages: Sequence[Message], stored: Sequence[Message], dialect: str) -> tuple[Message, ...]:
    """Return messages with the stored answers in place of their own, from the last one back while they are equal."""
    restored, left = list(messages), list(stored)
    for at in reversed(range(len(restored))):
        message = restored[at]
        if message.role is not Role.ASSISTANT:
            continue
        original = left.pop() if left else None
        if original is None or not _is_same_answer(message, original):
            break
        if has_signatures(original.content, dialect):
            restored[at] = message.replace(content=_with_call_ids(original.content, message.content))
    return tuple(restored)


def _latest_answers(messages: Sequence[Message]) -> int:
    """Return the number of messages since the last question, if there is an answer among them."""
    roles = [message.role for message in messages]
    start = len(roles) - roles[::-1].index(Role.USER) if Role.USER in roles else 0
    return len(roles) - start if Role.ASSISTANT in roles[start:] else 0


def has_signatures(content: Iterable[ContentBlock], dialect: str) -> bool:
    """Whether a provider of a dialect has put reasoning or signatures into an answer."""
    return any((getattr(block, "provider_raw", None) or {}).get("dialect") == dialect for block in content)


def _is_same_answer(message: Message, original: Message) -> bool:
    first, second = (session_chain.extend_chain(b"", Role.ASSISTANT, each.content) for each in (message, original))
    return first == second


def _with_call_ids(content: Sequence[ContentBlock], repeated: Sequence[ContentBlock]) -> tuple[ContentBlock, ...]:
    """Return the stored blocks with the ids of calls to which the results of the request refer."""
    calls = iter([block for block in repeated if isinstance(block, CallBlock)])
    return tuple(_with_id_of(block, next(calls)) if isinstance(block, CallBlock) else block for block in content)


def _with_id_of(block: CallBlock, repeated: CallBlock) -> CallBlock:
    """Return a stored call with the id of the repeated one; also its id on the wire, if the provider issued none."""
    raw = block.provider_raw or {}
    issued = raw.get("id") or (repeated.provider_raw or {}).get("id")
    return block.replace(id=repeated.id, provider_raw={**raw, "id": issued} if issued else block.provider_raw)


def hide_content(message: Message) -> Message:
    """Return a message without its content: roles, names of tools, usage and cost stay."""
    content = tuple(_hide_block(block) for block in message.content if not isinstance(block, ThinkingBlock))
    metadata = message.metadata.replace(provider_raw=None)
    return message.replace(content=content or (TextBlock(_HIDDEN),), metadata=metadata)


def _hide_block(block: ContentBlock) -> ContentBlock:
    match block:
        case ToolUseBlock(id=call_id, name=name) | InvalidToolUseBlock(id=call_id, name=name):
            return ToolUseBlock(call_id, name, {})
        case ToolResultBlock(tool_use_id=call_id, is_error=is_error):
            return ToolResultBlock(call_id, (TextBlock(_HIDDEN),), is_error)
        case _:
            return TextBlock(_HIDDEN)


@functools.lru_cache(maxsize=1024)
def owner_digest(user_id: str, team_id: str | None) -> str:
    """Return the owner of stored objects: one text for a user in a team."""
    return hashlib.sha256(msgspec.json.encode((user_id, team_id))).hexdigest()


def _new_places(
    transcript: Transcript, reply: Reply, messages: Sequence[Message], *, is_new: bool
) -> tuple[NewPlace, ...]:
    """Return the places by which the next call finds this one: after the question, and after the answer."""
    call_ids = tuple(block.id for block in messages[-1].content if isinstance(block, CallBlock))
    question = NewPlace(hash=transcript.hashes[-1], offset=len(messages) - 1, system_hash=transcript.system_hash)
    after = session_chain.extend_chain(transcript.hashes[-1], Role.ASSISTANT, reply.content)
    answer = NewPlace(hash=after, offset=len(messages), system_hash=transcript.system_hash, call_ids=call_ids)
    root = NewPlace(hash=transcript.hashes[0], offset=None)
    has_root = is_new and transcript.key is not None
    has_question = len(messages) > 1 and bool(transcript.candidates())
    return (*((root,) if has_root else ()), *((question,) if has_question else ()), answer)


def _map_calls(messages: Sequence[Message], place: TranscriptPlace | None) -> dict[str, str]:
    """Return the stored ids of the calls of the last shared answer, by their ids in the request."""
    if place is None or not messages:
        return {}
    calls = [block.id for block in messages[-1].content if isinstance(block, CallBlock)]
    return dict(zip(calls, place.call_ids, strict=False))


def count_usage(canonical: Request, reply: Reply, *, is_cut: bool = False) -> TokenUsage:
    """Return the provider's counts, or an estimate that is marked as one.

    Of an answer that was cut, only what arrived is counted: the provider's counts so far are those of its beginning.
    """
    reported = reply.usage if reply.usage is not None and not reply.usage.estimated else None
    if reported is not None and not is_cut:
        return reported
    output_tokens = tokens.estimate_content(reply.content, canonical.model)
    if reported is not None:
        return reported.replace(output_tokens=max(reported.output_tokens, output_tokens), estimated=True)
    tools = [tool for tool in canonical.tools if isinstance(tool, ToolDefinition)]
    return TokenUsage(
        input_tokens=tokens.estimate(canonical.messages, tools, canonical.model),
        output_tokens=output_tokens,
        estimated=True,
    )


def _title(messages: Sequence[Message]) -> str | None:
    """Return the beginning of the first question, without the context that agents put before it in tags."""
    texts = [
        [block.text for block in message.content if isinstance(block, TextBlock)]
        for message in messages
        if message.role is Role.USER
    ]
    return title_from(texts)


def title_from(texts: Sequence[Sequence[str]]) -> str | None:
    """Return the title of a session by the texts of its questions."""
    questions = [[text for text in parts if not ("</" in text and _CONTEXT.fullmatch(text))] for parts in texts]
    parts = next((parts for parts in (*questions, *texts) if parts), ())
    text = " ".join(parts).replace("\0", " ")  # which PostgreSQL cannot store in a column
    start = text[:_MAX_TITLE]
    if start.isprintable() and "  " not in start and start == start.strip():  # no white space but single spaces
        return start or None
    title = " ".join(text[: 2 * _MAX_TITLE].split())
    if len(title) < _MAX_TITLE:  # most texts have less white space
        title = " ".join(text.split(None, _MAX_TITLE)[:_MAX_TITLE])  # no more words fit
    return title[:_MAX_TITLE] or None
