"""One call of a model: the models to try, the provider's answer, and the response to the caller.

    response = await ChatCall(gateway, client_request, resolution).run()

A model is tried again, or the next one is tried, only before the first token. In the caller's own dialect the
provider's status, headers and bytes are the response; otherwise the reply is translated.

Invariants: a stream that breaks ends with an error in the caller's dialect. What arrived is recorded before the last
byte is sent, also if the caller disconnects.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman import dialects
from dragoman.client import Retries
from dragoman.client.call import NetworkError
from dragoman.client.retry import resolve_retry_date, retry_delay_s, retry_hint
from dragoman.errors import InputError, SettingsError
from dragoman.exchange import ErrorClass, Fault, Loss, Reply, Request, Written
from dragoman.gateway import fast_path, record_fast_path
from dragoman.gateway import headers as header_rules
from dragoman.gateway.client_request import ClientRequest
from dragoman.gateway.error_shapes import error_response, may_fall_back, request_id_header
from dragoman.gateway.fast_path import PlainRequest
from dragoman.gateway.hooks import CallEnd, CallStart
from dragoman.gateway.identity import call_times, echo_request, end_fields, reply_identity
from dragoman.gateway.model_names import Resolution
from dragoman.gateway.record_fast_path import PlainQuestion
from dragoman.gateway.recorder import Recorder, Transcript, count_usage, read_transcript
from dragoman.gateway.response_objects import append_items
from dragoman.gateway.response_state import (
    ResponseState,
    keep_locally,
    show_state,
    show_state_in_frame,
    stored_response,
    to_items,
)
from dragoman.gateway.session_chain import session_key
from dragoman.gateway.sparse_responses import ResponseCompleter
from dragoman.gateway.stream_pump import Stream, StreamPump
from dragoman.gateway.streams import LOCAL_FAULTS, MEDIA_TYPES, FinalResponse, NativeStream, ping, stream_framing
from dragoman.gateway.tool_forms import ToolForms
from dragoman.gateway.translation import (
    SIGNATURE_MARK,
    CallerForm,
    StreamTranslator,
    is_answer,
    loss_names,
    read_reply,
    translate_request,
    write_reply,
)
from dragoman.gateway.types import JSON_TYPE, GatewayResponse
from dragoman.gateway.upstream import Target, UpstreamRequest, UpstreamResponse, build_request, open_response
from dragoman.message import Usage
from dragoman.offload import run_off_loop
from dragoman.shield import run_to_completion
from dragoman.store.gateway_calls import PlainSession, StoredObject
from dragoman.store.message_rows import MAX_INLINE_BYTES
from dragoman.value import SlowPathRequired

if TYPE_CHECKING:
    from dragoman.gateway.gateway import Gateway

_MAX_REPLY_BYTES: Final = 64 * 2**20
_MAX_HEADER: Final = 1_000


class Failure(msgspec.Struct, frozen=True):
    """A failed attempt. ``body`` is the provider's, if it can be passed on as it is."""

    fault: Fault
    target: Target
    status: int | None = None
    headers: dict[str, str] = {}
    body: bytes | None = None


class Attempt(msgspec.Struct, frozen=True):
    """A request to one model, and what the translation lost."""

    target: Target
    request: UpstreamRequest
    is_native: bool
    losses: tuple[Loss, ...] = ()


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A finished call, for the recorder."""

    client_request: ClientRequest
    canonical: Request | None = None  # none if the body cannot be read
    transcript: Transcript | None = None  # of the canonical request
    target: Target
    reply: Reply
    reason: str  # why this model was chosen
    losses: tuple[str, ...]
    started_at: datetime
    latency_ms: int
    is_cancelled: bool = False
    stored_response: StoredObject | None = None  # what the Responses API can retrieve later
    new_session_id: str | None = None  # of the session, if the call does not continue one


class ChatCall:
    """One call in progress."""

    _canonical: Request | None = None
    _plain: PlainRequest | None = None
    _is_plain_read = False
    _transcript: Transcript | None = None
    _attempts = 0
    _output_start_s: float | None = None  # when the first token of a stream arrived
    _call_start: CallStart | None = None  # none: no hook has accepted the call, or its end was reported
    _session_id: str | None = None  # where the call is recorded
    _new_session_id: str | None = None

    def __init__(
        self,
        gateway: Gateway,
        client_request: ClientRequest,
        resolution: Resolution,
        state: ResponseState | None = None,
    ) -> None:
        self._gateway = gateway
        self._state = state
        self._services = gateway.services
        self._config = gateway.config
        self._client_request = client_request
        self._resolution = resolution
        self._started_at = self._services.clock()
        self._start_s = self._services.client.clock()

    async def run(self) -> GatewayResponse:
        """Return the response of the first model that answers, or the last failure."""
        if not self._gateway.hooks.is_empty:
            call_start = self._describe_start()
            await self._gateway.hooks.start(call_start)
            self._call_start = call_start
        self._gateway.active_calls += 1
        try:
            return await self._call_models()
        except BaseException:
            await run_to_completion(self._report_end(is_cancelled=True))
            raise
        finally:
            self._gateway.active_calls -= 1

    async def _call_models(self) -> GatewayResponse:
        failure: Failure | None = None
        models = self._available_models()
        for number, model in enumerate(models):
            try:
                target = await self._gateway.target(model)
            except SettingsError:
                if number + 1 == len(models) and failure is None:
                    raise
                continue
            outcome = await self._try_target(target, is_last=number + 1 == len(models))
            if isinstance(outcome, GatewayResponse):
                return outcome
            failure = outcome
            if not may_fall_back(failure.fault):
                break
        assert failure is not None
        await self._report_end(fault=failure.fault)
        return self._failure_response(failure)

    def _available_models(self) -> tuple[Any, ...]:
        """Return the models without those that failed recently, unless that leaves none."""
        models = self._resolution.models
        if len(models) < 2:
            return models
        now, availability = self._services.clock(), self._services.availability
        good = tuple(model for model in models if availability.is_available(model.provider, model.id, now))
        return good or models

    # --- attempts ----------------------------------------------------------------------------------------------------

    async def _try_target(self, target: Target, *, is_last: bool) -> GatewayResponse | Failure:
        attempt = await self._prepare(target)
        max_retries = self._config.retries
        for number in range(max_retries + 1):
            self._attempts += 1
            has_more = number < max_retries or not is_last
            outcome = await self._attempt(attempt, has_more=has_more)
            fault = outcome.fault if isinstance(outcome, Failure) else None
            self._services.record_call(target.model, fault, session_id="system")
            if isinstance(outcome, GatewayResponse):
                return outcome
            retries, hint = Retries(max_retries=max_retries), retry_hint(outcome.headers)
            delay_s = retry_delay_s(
                outcome.fault, number, retries, self._services.client.random_source(), provider_hint=hint
            )
            if delay_s is None:
                return outcome
            await self._services.client.sleep(delay_s)
        return outcome

    async def _prepare(self, target: Target) -> Attempt:
        client_request = self._client_request
        dialect = target.provider.dialect
        if dialect == client_request.dialect == client_request.reply_dialect:
            request = build_request(
                target,
                await self._native_body(target),
                stream=client_request.stream,
                caller_headers=header_rules.request_headers(client_request.request.headers, dialect),
                query=header_rules.forward_query(client_request.request.query),
            )
            return Attempt(target, request, is_native=True)
        translated = await self._translate_request(target)
        body = msgspec.json.encode(translated.wire)
        request = build_request(target, body, stream=client_request.stream)
        return Attempt(target, request, is_native=False, losses=translated.losses)

    async def _translate_request(self, target: Target) -> Written:
        request, templates = self._client_request, self._gateway.templates
        plain = self._read_plain()
        if plain is not None and (known := templates.write(plain, target, stream=request.stream)) is not None:
            return known
        canonical = await self._restore_answers(await self.canonical(), target.provider.dialect)
        size = len(request.request.body)
        translated = await run_off_loop(size, self._translate, canonical, request.dialect, target)
        if plain is not None:
            templates.learn(plain, target, translated, stream=request.stream)
        return translated

    def _read_plain(self) -> PlainRequest | None:
        """Return the request as the fast paths read it; none if it is not plain."""
        if not self._is_plain_read:
            self._plain, self._is_plain_read = fast_path.read_plain(self._client_request), True
        return self._plain

    async def _restore_answers(self, canonical: Request, dialect: str) -> Request:
        """Return the request with the reasoning and the signatures that its caller cannot repeat."""
        recorder = self._recorder
        if recorder is None:
            return canonical
        return await recorder.restore_answers(self._client_request, canonical, dialect, self._read_transcript)

    def _read_transcript(self, canonical: Request) -> Transcript:
        """Return the conversation of the request. It is read once: the hashes of a long one take a while."""
        if self._transcript is None:
            self._transcript = read_transcript(self._client_request, canonical)
        return self._transcript

    def _translate(self, canonical: Request, dialect: str, target: Target) -> Written:
        return translate_request(
            canonical,
            dialect,
            target.model,
            target.provider,
            stream=self._client_request.stream,
            with_caching=self._config.prompt_caching,
        )

    async def _native_body(self, target: Target) -> bytes:
        """Return the caller's body, with the provider's model name and without reasoning of another provider."""
        fields, body = self._client_request.fields, self._client_request.request.body
        if SIGNATURE_MARK in body:
            canonical = await self.canonical()
            translated = await run_off_loop(len(body), self._translate, canonical, self._client_request.dialect, target)
            return msgspec.json.encode(translated.wire)
        if "model" not in fields or self._client_request.model == target.model.name:
            return body
        return msgspec.json.encode({**fields, "model": target.model.name})

    async def canonical(self) -> Request:
        """Return the request as its dialect reads it."""
        if self._canonical is None:
            body = self._client_request.request.body
            read = dialects.load(self._client_request.dialect).read_request
            request: Request = await run_off_loop(len(body), read, body)
            self._canonical = request
        return self._canonical

    async def _attempt(self, attempt: Attempt, *, has_more: bool) -> GatewayResponse | Failure:
        try:
            response = await open_response(self._gateway.client, attempt.request, self._gateway.timeouts)
        except NetworkError as error:
            return Failure(error.fault, attempt.target)
        is_open = False
        try:
            if not 200 <= response.status < 300:
                return await self._read_failure(attempt, response)
            if not attempt.request.stream:
                return await self._whole_response(attempt, response)
            outcome = await self._stream_response(attempt, response, has_more=has_more)
            is_open = isinstance(outcome, GatewayResponse)
            return outcome
        except NetworkError as error:
            return Failure(error.fault, attempt.target)
        finally:
            if not is_open:
                response.close()

    async def _read_failure(self, attempt: Attempt, response: UpstreamResponse) -> Failure:
        body = await response.read_error()
        read_error = dialects.load(attempt.target.provider.dialect).read_error
        fault: Fault = resolve_retry_date(
            read_error(response.status, response.headers, body), response.headers, self._services.clock()
        )
        raw = _mask(body, attempt.target) if attempt.is_native else None
        return Failure(self._mask_fault(fault, attempt.target), attempt.target, response.status, response.headers, raw)

    def _mask_fault(self, fault: Fault, target: Target) -> Fault:
        key = target.endpoint.key
        return fault if key is None else fault.replace(message=key.mask_in(fault.message))

    def _failure_response(self, failure: Failure) -> GatewayResponse:
        """Return the failure: the provider's own response in the same dialect, else one in the caller's."""
        headers = self._choice_headers(failure.target, ())
        request = self._client_request
        if failure.body is not None and failure.status is not None:
            content_type = failure.headers.get("content-type", JSON_TYPE)
            passed = header_rules.response_headers(failure.headers)
            return GatewayResponse(
                status=failure.status, headers={**headers, **passed, "content-type": content_type}, body=failure.body
            )
        response = error_response(request.reply_dialect, failure.fault, request.request.request_id)
        if (hint := failure.headers.get("x-should-retry")) is not None:
            response.headers["x-should-retry"] = hint
        response.headers = {**headers, **response.headers}
        return response

    # --- whole replies -----------------------------------------------------------------------------------------------

    async def _whole_response(self, attempt: Attempt, response: UpstreamResponse) -> GatewayResponse | Failure:
        body = await response.read_all(_MAX_REPLY_BYTES)
        target = attempt.target
        plain = None if attempt.is_native else self._translate_plain_reply(target, body)
        if (done := await self._plain_response(attempt, response, body, plain)) is not None:
            return done
        try:
            reply = await run_off_loop(len(body), read_reply, target.provider.dialect, body)
        except InputError as error:
            fault = Fault(
                code="bad_content_type",
                message=f"the provider's response is not a reply: {error.what}",
                error_class=ErrorClass.SERVER_ERROR,
                retryable=True,
            )
            return Failure(fault, target)
        if attempt.is_native:
            body = self._complete_body(body)
            await self._record(target, reply, attempt.losses, self._response_of(body))
            shown = body if self._state is None else show_state(self._state, body)
            return self._native_response(target, response, shown)
        if reply.fault is not None and not is_answer(reply):
            return Failure(reply.fault, target)
        written = plain or write_reply(reply, await self._caller_form(target))
        losses = (*attempt.losses, *written.losses)
        await self._record(target, reply, losses, written.wire if self._state is not None else None)
        return self._make_response(target, written.wire, losses)

    async def _plain_response(
        self, attempt: Attempt, response: UpstreamResponse, body: bytes, translated: Written | None
    ) -> GatewayResponse | None:
        """Return the response to a plain reply, after it is recorded; none if the general path has to read it."""
        target, question = attempt.target, None
        if self._needs_reply:
            question = self._find_question() if self._call_start is None and len(body) <= MAX_INLINE_BYTES else None
            if question is None:
                return None
        if translated is None and not (attempt.is_native and fast_path.is_plain_reply(body, target.provider.dialect)):
            return None
        losses = attempt.losses if translated is None else (*attempt.losses, *translated.losses)
        if question is not None and not await self._record_plain(question, target, body, losses):
            return None
        if translated is None:
            return self._native_response(target, response, body)
        return self._make_response(target, translated.wire, losses)

    def _native_response(self, target: Target, response: UpstreamResponse, body: bytes) -> GatewayResponse:
        """Return the provider's response in the caller's own dialect."""
        headers = self._choice_headers(target, ())
        headers |= header_rules.response_headers(response.headers)
        headers["content-type"] = response.headers.get("content-type", JSON_TYPE)
        return GatewayResponse(status=response.status, headers=headers, body=body)

    def _translate_plain_reply(self, target: Target, body: bytes) -> Written | None:
        dialect = self._client_request.reply_dialect
        return fast_path.translate_reply(body, target.provider.dialect, dialect, self._identity)

    def _make_response(self, target: Target, wire: Any, losses: tuple[Loss, ...]) -> GatewayResponse:
        headers = self._choice_headers(target, losses)
        headers["content-type"] = JSON_TYPE
        return GatewayResponse(headers=headers, body=msgspec.json.encode(wire))

    # --- streams -----------------------------------------------------------------------------------------------------

    async def _stream_response(
        self, attempt: Attempt, response: UpstreamResponse, *, has_more: bool
    ) -> GatewayResponse | Failure:
        """Return the streamed response once the answer has begun, or the failure before it."""
        stream = await self._make_stream(attempt)
        pump = StreamPump(response, stream)
        await pump.start(self._config.ping_s)
        self._note_output(stream)
        fault = stream.fault
        if fault is not None and not stream.has_content:
            is_provider_error = attempt.is_native and fault.code not in LOCAL_FAULTS
            if has_more or not is_provider_error:
                return Failure(self._mask_fault(fault, attempt.target), attempt.target, headers=response.headers)
        dialect = self._client_request.reply_dialect
        await self._reserve_session()
        headers = self._choice_headers(attempt.target, attempt.losses)
        if attempt.is_native:
            headers |= header_rules.response_headers(response.headers)
        framing = stream_framing(dialect, self._client_request.framing)
        headers |= {"content-type": MEDIA_TYPES[framing], "cache-control": "no-cache", "x-accel-buffering": "no"}
        return GatewayResponse(headers=headers, body=self._send_stream(attempt, pump))

    async def _reserve_session(self) -> None:
        """Find the session of the call before it is recorded: the headers of a stream name it."""
        canonical = await self._canonical_or_none() if self._recorder is not None else None
        if self._recorder is None or canonical is None:
            return
        reserved = await self._recorder.reserve_session(self._read_transcript(canonical))
        if reserved is not None:
            self._session_id, self._new_session_id = reserved.id, reserved.new_id

    async def _make_stream(self, attempt: Attempt) -> Stream:
        request, provider = self._client_request, attempt.target.provider
        if attempt.is_native:
            return NativeStream(provider.dialect, request.framing, provider.quirks, self._frame_change())
        options = request.value("stream_options") if request.dialect == "openai_chat" else None
        with_usage = request.reply_dialect != "openai_chat" or (
            isinstance(options, dict) and options.get("include_usage") is True
        )
        form = await self._caller_form(attempt.target)
        return StreamTranslator(provider, form, request.framing, with_usage=with_usage)

    async def _send_stream(self, attempt: Attempt, pump: StreamPump) -> AsyncGenerator[bytes, None]:
        """Yield the caller's bytes. The reply is recorded before the last of them."""
        stream, is_recorded = pump.stream, False
        final = FinalResponse() if self._state is not None else None
        keep_alive = ping(self._client_request.reply_dialect)
        self._gateway.active_calls += 1
        try:
            while pump.has_more:
                data = await pump.next(self._config.ping_s)
                if data is None:
                    if keep_alive:
                        yield keep_alive
                    continue
                self._note_output(stream)
                if final is not None:
                    final.feed(data)
                if (stream.is_complete or stream.fault is not None) and not is_recorded:
                    is_recorded = True
                    response = final.response if final is not None else None
                    await self._record_stream(attempt, stream, response)
                if data:
                    yield data
        finally:
            pump.close()
            self._gateway.active_calls -= 1
            if not is_recorded:
                await run_to_completion(self._record_stream(attempt, stream, is_cancelled=True))

    async def _record_stream(
        self, attempt: Attempt, stream: Stream, response: dict[str, Any] | None = None, *, is_cancelled: bool = False
    ) -> None:
        losses = (*attempt.losses, *stream.losses)
        await self._record(attempt.target, stream.accumulator.reply(), losses, response, is_cancelled=is_cancelled)

    def _note_output(self, stream: Stream) -> None:
        """Keep the time of the first token."""
        if self._output_start_s is None and stream.has_content:
            self._output_start_s = self._services.client.clock()

    # --- whole replies and streams -----------------------------------------------------------------------------------

    async def _caller_form(self, target: Target) -> CallerForm:
        canonical = await self.canonical()
        return CallerForm(
            self._client_request.reply_dialect,
            target.model.name,
            self._identity(),
            ToolForms(canonical.tools),
            self._new_call_id,
            self._end_fields,
        )

    def _end_fields(self) -> dict[str, Any]:
        dialect, now_s = self._client_request.reply_dialect, self._services.client.clock()
        output_s = now_s - self._output_start_s if self._output_start_s is not None else None
        times = call_times(dialect, now_s - self._start_s, output_s)
        return end_fields(dialect, self._services.clock()) | times

    def _identity(self) -> dict[str, Any]:
        dialect = self._client_request.reply_dialect
        identity = reply_identity(dialect, self._gateway.new_id(), self._started_at)
        if dialect == "openai_responses":
            return identity | self._echo()
        if dialect == "anthropic" and self._client_request.model:
            identity["model"] = self._client_request.model  # Claude Code drops signed reasoning of another model
        return identity

    def _echo(self) -> dict[str, Any]:
        """Return the fields of a Responses request that its response repeats."""
        names = self._client_request.fields
        echo = echo_request({name: self._client_request.value(name) for name in names if name != "input"})
        if self._state is not None:
            echo |= self._state.echo
        return echo

    def _completer(self) -> ResponseCompleter | None:
        """Return the completer for fields that a server of the Responses API leaves out."""
        if self._client_request.reply_dialect != "openai_responses":
            return None
        return ResponseCompleter(self._echo, self._services.clock)

    def _complete_body(self, body: bytes) -> bytes:
        completer = self._completer()
        return body if completer is None else completer.complete_body(body)

    def _frame_change(self) -> Callable[[bytes], bytes] | None:
        """Return the function that completes frames in the caller's own dialect; none if they are complete."""
        completer, state = self._completer(), self._state
        if completer is None or state is None or not any(state.echo.values()):
            return completer.complete_frame if completer is not None else None
        return lambda frame: show_state_in_frame(state, completer.complete_frame(frame))

    def _response_of(self, body: bytes) -> dict[str, Any] | None:
        """Return the provider's response, if it may be stored for the Responses API."""
        response = msgspec.json.decode(body) if self._state is not None else None
        return response if isinstance(response, dict) else None

    def _new_call_id(self) -> str:
        return f"call_{self._gateway.new_id()}"

    async def _record(
        self,
        target: Target,
        reply: Reply,
        losses: tuple[Loss, ...],
        response: dict[str, Any] | None = None,
        *,
        is_cancelled: bool = False,
    ) -> None:
        keep_locally(self._client_request, response)
        if self._recorder is not None:
            await self._store(self._recorder, target, reply, losses, response, is_cancelled=is_cancelled)
        await self._report_end(target, reply, fault=reply.fault, is_cancelled=is_cancelled)

    @property
    def _needs_reply(self) -> bool:
        """Whether the reply is recorded, or its usage reported."""
        return self._recorder is not None or self._call_start is not None

    @property
    def _recorder(self) -> Recorder | None:
        """The recorder, unless the caller's key turns recording off."""
        return None if self._client_request.request.caller.recording == "off" else self._gateway.recorder

    async def _store(
        self,
        recorder: Recorder,
        target: Target,
        reply: Reply,
        losses: tuple[Loss, ...],
        response: dict[str, Any] | None,
        *,
        is_cancelled: bool,
    ) -> None:
        stored = stored_response(self._state, response, self._services.clock())
        end_s = self._services.client.clock()
        exchange = self._make_exchange(target, reply, losses, end_s, is_cancelled=is_cancelled, stored_response=stored)
        question = None if is_cancelled else self._find_question()
        session = record_fast_path.make_session(self._services, exchange, question) if question is not None else None
        active_calls = self._gateway.active_calls
        if session is not None:
            request_id = self._client_request.request.request_id
            row = await recorder.record_plain(lambda: session, request_id, active_calls)
        else:
            record = recorder.record(await self._with_transcript(exchange), active_calls)
            row = await run_to_completion(record)  # also if the caller disconnects now
        self._session_id = row.session_id if row is not None else None
        state = self._state
        if stored is not None and state is not None and state.conversation_id is not None:
            output = [item for item in to_items(stored.body.get("output")) if isinstance(item, dict)]
            items = [*state.input, *output]
            await append_items(self._gateway, self._client_request.request, state.conversation_id, items)

    def _make_exchange(
        self, target: Target, reply: Reply, losses: tuple[Loss, ...], end_s: float, **fields: Any
    ) -> Exchange:
        return Exchange(
            client_request=self._client_request,
            target=target,
            reply=reply,
            reason=self._resolution.reason,
            losses=loss_names(losses),
            started_at=self._started_at,
            latency_ms=round((end_s - self._start_s) * 1000),
            new_session_id=self._new_session_id,
            **fields,
        )

    def _find_question(self) -> PlainQuestion | None:
        """Return the question of a call that the fast path may record."""
        request = self._client_request.request
        if (
            self._recorder is None
            or request.caller.recording != "on"
            or self._state is not None
            or self._new_session_id is not None
            or session_key(request.headers) is not None
        ):
            return None
        plain = self._read_plain()
        return self._gateway.record_templates.find(plain) if plain is not None else None

    async def _record_plain(
        self, question: PlainQuestion, target: Target, body: bytes, losses: tuple[Loss, ...]
    ) -> bool:
        """Record a call with a plain reply, which is read with those of other calls; whether that was possible."""
        assert self._recorder is not None
        end_s = self._services.client.clock()
        make_session = functools.partial(self._make_session, question, target, body, losses, end_s)
        request_id = self._client_request.request.request_id
        try:
            row = await self._recorder.record_plain(make_session, request_id, self._gateway.active_calls)
        except SlowPathRequired:
            return False
        self._session_id = row.session_id if row is not None else None
        return True

    def _make_session(
        self, question: PlainQuestion, target: Target, body: bytes, losses: tuple[Loss, ...], end_s: float
    ) -> PlainSession:
        """Return the rows of a call with a plain reply."""
        try:
            reply = read_reply(target.provider.dialect, body)
        except InputError:
            raise SlowPathRequired from None  # a key occurs twice
        exchange = self._make_exchange(target, reply, losses, end_s)
        session = record_fast_path.make_session(self._services, exchange, question)
        if session is None:
            raise SlowPathRequired
        return session

    async def _with_transcript(self, exchange: Exchange) -> Exchange:
        """Return a call with its request as the general path reads it."""
        canonical = await self._canonical_or_none()
        if canonical is None or not exchange.reply.content:
            return exchange
        if (plain := self._read_plain()) is not None:
            self._gateway.record_templates.learn(plain, canonical)
        transcript = self._read_transcript(canonical)
        return msgspec.structs.replace(exchange, canonical=canonical, transcript=transcript)

    async def _canonical_or_none(self) -> Request | None:
        try:
            return await self.canonical()
        except InputError:
            return None

    # --- hooks -------------------------------------------------------------------------------------------------------

    def _describe_start(self) -> CallStart:
        request = self._client_request
        return CallStart(
            caller=request.request.caller,
            dialect=request.reply_dialect,
            name=request.model,
            models=tuple(model.id for model in self._resolution.models),
            is_stream=request.stream,
            body=request.request.body,
            request_id=request.request.request_id,
        )

    async def _report_end(
        self,
        target: Target | None = None,
        reply: Reply | None = None,
        *,
        fault: Fault | None = None,
        is_cancelled: bool = False,
    ) -> None:
        """Run the hook after the call, once."""
        call_start, self._call_start = self._call_start, None
        if call_start is None:
            return
        is_cut = is_cancelled or fault is not None
        usage = await self._price(target, reply, is_cut=is_cut) if target is not None and reply is not None else None
        latency_s = self._services.client.clock() - self._start_s
        await self._gateway.hooks.end(
            CallEnd(
                start=call_start,
                model=target.model.id if target is not None else None,
                usage=usage,
                fault=fault,
                is_cancelled=is_cancelled,
                latency_ms=round(latency_s * 1000),
                session_id=self._session_id,
            )
        )

    async def _price(self, target: Target, reply: Reply, *, is_cut: bool) -> Usage | None:
        canonical = await self._canonical_or_none()
        if canonical is None:
            return None
        counts = count_usage(canonical, reply, is_cut=is_cut)
        return self._services.price_usage(target.model, counts, self._started_at, 0)

    def _choice_headers(self, target: Target, losses: tuple[Loss, ...]) -> dict[str, str]:
        """Return the headers that name the chosen model and why, and what the translation lost."""
        models, reason = self._resolution.models, self._resolution.reason
        if target.model is not models[0]:
            position = models.index(target.model)
            reason = reason if position == 0 else f"{reason}; fallback {position}"
        headers = {
            "x-dragoman-model": _header_text(target.model.id),
            "x-dragoman-route": reason,
            "x-dragoman-attempts": str(self._attempts),
            **request_id_header(self._client_request.reply_dialect, self._client_request.request.request_id),
        }
        if self._session_id is not None:
            headers["x-dragoman-session"] = self._session_id
        if losses:
            headers["x-dragoman-losses"] = _header_text(", ".join(loss_names(losses)))
        return headers


def _mask(body: bytes, target: Target) -> bytes:
    """Return an error body without our key: some providers repeat a rejected key."""
    key = target.endpoint.key
    if key is None or key.reveal().encode() not in body:
        return body
    return body.replace(key.reveal().encode(), str(key).encode())


@functools.lru_cache(maxsize=1024)
def _header_text(text: str) -> str:
    return text.encode("ascii", "replace").decode()[:_MAX_HEADER]
