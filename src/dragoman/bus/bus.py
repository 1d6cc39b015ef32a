"""The event bus: distributes events to subscribers.

    async with Bus() as bus:
        bus.subscribe("screen", show, event_types=["llm.call_completed"])
        turn = bus.scope(session_id, turn_id)
        turn.emit(TurnStarted(...))

``emit`` appends an event to a queue and returns immediately. One task dispatches the queue in order: it awaits the
fast subscribers one after the other, and appends the event to the queue of each other subscriber, which has its own
task. A subscriber that raises loses that event. A subscriber whose queue is full loses events and receives
``bus.gap_detected`` in their place. No event is delivered twice.

Invariant: a subscriber cannot delay, stop or change the delivery to other subscribers, or block an emitter.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self
from weakref import WeakValueDictionary

from dragoman.bus.event_types import EVENT_TYPES
from dragoman.bus.event_types.system_events import BusGapDetected, BusSubscriberRegistered, BusSubscriberUnregistered
from dragoman.bus.types import (
    ALIASES,
    SUBJECT_TYPES,
    SYSTEM,
    Actor,
    Event,
    EventParents,
    Filter,
    Payload,
    Sensitivity,
    get_event_type,
    get_subject,
    index_event_types,
    parse_payload,
    validate_payload,
)
from dragoman.errors import BusError, DragomanError, EventError
from dragoman.ids import UlidSource

Handler = Callable[[Event], Awaitable[None] | None]
BatchHandler = Callable[[Sequence[Event]], Awaitable[None] | None]

_log: Final = logging.getLogger("dragoman.bus")
_LIMIT: Final = 10_000
_DISPATCH_BATCH: Final = 64  # events dispatched before other tasks of the loop run
_FAST_TIMEOUT_S: Final = 1.0  # a fast subscriber that needs longer gets a queue


def _clock_us() -> int:
    return time.time_ns() // 1_000


class Subscription:
    """A subscriber with its filter, its queue and its counts of lost events."""

    def __init__(
        self,
        name: str,
        handler: BatchHandler,
        event_filter: Filter,
        *,
        limit: int,
        max_batch: int = 1,
        max_delay_s: float = 0.0,
        is_fast: bool = False,
    ) -> None:
        self.name = name
        self.event_filter = event_filter
        self.is_fast = is_fast
        self.missed_count = 0  # events dropped because the queue was full
        self.failed_count = 0  # events at which the handler raised
        self._handler = handler
        self._limit = limit
        self._max_batch = max_batch
        self._max_delay_s = max_delay_s
        self._queue: deque[Event] = deque()
        self._gap: list[Event] | None = None  # first and last event missed since the last delivery
        self._gap_size = 0
        self._has_events = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_closing = False
        self._flush = asyncio.Event()

    @property
    def queue_size(self) -> int:
        """Number of queued events."""
        return len(self._queue)

    def offer(self, event: Event) -> None:
        """Queue an event. After an overflow, events are dropped until half of the queue is free."""
        if self._gap is not None or len(self._queue) >= self._limit:
            self._gap = [self._gap[0] if self._gap else event, event]
            self._gap_size += 1
            self.missed_count += 1
            return
        self._queue.append(event)
        self._is_idle.clear()
        self._has_events.set()

    def pop_gap(self) -> BusGapDetected | None:
        """Return the missed events once half of the queue is free."""
        if self._gap is None or len(self._queue) > self._limit // 2:
            return None
        first, last = self._gap
        self._gap, missed, self._gap_size = None, self._gap_size, 0
        return BusGapDetected(subscriber=self.name, missed=missed, first_event_id=first.id, last_event_id=last.id)

    async def run(self, on_dequeue: Callable[[Subscription], None]) -> None:
        """Handle queued events until the subscription is closed and its queue is empty."""
        while True:
            while not self._queue:
                self._is_idle.set()
                if self._is_closing:
                    return
                self._has_events.clear()
                await self._has_events.wait()
            await self._wait_for_batch()
            batch = [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
            on_dequeue(self)
            await self.handle(batch)

    async def handle(self, batch: Sequence[Event]) -> None:
        """Call the handler; log what it raises."""
        try:
            result = self._handler(batch)
            if inspect.isawaitable(result):
                await result
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            self.failed_count += len(batch)
            _log.warning(
                "subscriber %s failed at %s%s",
                self.name,
                batch[0].type,
                f" and {len(batch) - 1} more" if len(batch) > 1 else "",
                exc_info=True,
                extra={"subscriber": self.name, "event_id": batch[0].id, "event_type": batch[0].type},
            )

    async def _wait_for_batch(self) -> None:
        if self._max_delay_s and not self._is_closing and len(self._queue) < self._max_batch:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._max_delay_s):  # asyncio.wait_for of 3.11 may swallow a cancellation
                    await self._flush.wait()

    async def wait_idle(self) -> None:
        """Wait until the queue is empty and every event is handled."""
        self._flush.set()
        await self._is_idle.wait()
        self._flush.clear()

    def close(self) -> None:
        """End the subscription after its queued events."""
        self._is_closing = True
        self._flush.set()
        self._has_events.set()


def _is_cancelled() -> bool:
    """Whether the current task is cancelled, rather than something that it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class _Emitter:
    """Adds ``try_emit`` to ``emit``."""

    def emit(self, payload: Payload | str, fields: Mapping[str, Any] | None = None, **options: Any) -> Event | None:
        raise NotImplementedError

    def try_emit(self, payload: Payload | str, fields: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Emit an event; a full or closed bus is ignored, since the bus logs it."""
        try:  # noqa: SIM105  contextlib.suppress is slower, and every step of a turn calls this
            self.emit(payload, fields, **options)
        except BusError:
            pass


class Bus(_Emitter):
    """Receives events and delivers them to subscribers. Use it with ``async with``, in one event loop.

    With ``strict`` an invalid event raises; otherwise it is logged and dropped. ``clock_us`` returns the time in
    microseconds, ``ids`` the id of the next event. ``payloads`` are event types of the application.
    """

    def __init__(
        self,
        *,
        strict: bool = False,
        clock_us: Callable[[], int] = _clock_us,
        ids: Callable[[], str] | None = None,
        limit: int = _LIMIT,
        payloads: Iterable[type[Payload]] = (),
    ) -> None:
        self.strict = strict
        self.event_types: Mapping[str, type[Payload]] = index_event_types((*EVENT_TYPES.values(), *payloads))
        self._clock_us = clock_us
        self._now_us = 0  # time of the newest event, which its id uses as well
        self._ids = ids or UlidSource(lambda: self._now_us // 1_000, lambda: secrets.randbits(80)).next
        self._limit = limit
        self._queue: deque[tuple[Event, Subscription | None]] = deque()  # each with the subscription to exclude
        self._subscriptions: dict[Subscription, asyncio.Task[None] | None] = {}
        self._parents: WeakValueDictionary[tuple[str, str | None], EventParents] = WeakValueDictionary()
        self._has_events = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._dispatch_task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Start the delivery, also of events emitted before."""
        if self._dispatch_task is None and not self._is_closed:
            self._dispatch_task = asyncio.create_task(self._dispatch(), name="dragoman-bus")
            for subscription, task in self._subscriptions.items():
                if task is None and not subscription.is_fast:
                    self._subscriptions[subscription] = self._start_worker(subscription)

    # --- emit --------------------------------------------------------------------------------------------------------

    def emit(  # type: ignore[override]  # the options are spelled out
        self,
        payload: Payload | str,
        fields: Mapping[str, Any] | None = None,
        *,
        session_id: str = SYSTEM,
        turn_id: str | None = None,
        parent: Event | str | None = None,
        actor: Actor | str | None = None,
        sensitivity: Sensitivity | str | None = None,
    ) -> Event | None:
        """Emit a payload, or the name of an event type and its fields.

        Returns the event, which can be the parent of others; ``None`` if it is invalid and was dropped. Raises
        ``BusError`` if the queue is full or the bus is closed.
        """
        try:
            typed_payload = (
                parse_payload(payload, fields or {}, self.event_types) if isinstance(payload, str) else payload
            )
            event = self._make_event(typed_payload, session_id, turn_id, parent, actor=actor, sensitivity=sensitivity)
        except DragomanError as error:
            if self.strict:
                raise
            name = payload if isinstance(payload, str) else payload.event_type
            _log.warning("dropped an event: %s", error, extra={"event_type": name, "session_id": session_id})
            return None
        self._enqueue(event)
        return event

    def scope(self, session_id: str, turn_id: str | None = None, *, actor: Actor | str | None = None) -> Scope:
        """Return an emitter for one turn. Scopes of the same turn share the parents of its events."""
        parents = self._parents.get((session_id, turn_id)) if turn_id is not None else None
        scope = Scope(self, session_id, turn_id, actor, parents or EventParents())
        self._parents[session_id, turn_id] = scope.parents
        return scope

    def _make_event(
        self,
        payload: Payload,
        session_id: str = SYSTEM,
        turn_id: str | None = None,
        parent: Event | str | None = None,
        *,
        actor: Actor | str | None = None,
        sensitivity: Sensitivity | str | None = None,
    ) -> Event:
        where = f"event {payload.event_type}"
        if self.event_types.get(payload.event_type) is not type(payload):
            get_event_type(payload.event_type, self.event_types)
            raise EventError(f"{type(payload).__name__} is not its payload", where=where)
        if not session_id:
            raise EventError("the session id is empty", where=where, remedy='Use "system" for no session')
        validated, data = validate_payload(payload)
        self._now_us = self._clock_us()
        return Event(
            id=self._ids(),
            timestamp_us=self._now_us,
            session_id=session_id,
            turn_id=turn_id,
            parent_event_id=parent.id if isinstance(parent, Event) else parent,
            type=payload.event_type,
            actor=payload.actor if actor is None else _parse_actor(payload, actor),
            sensitivity=payload.sensitivity() if sensitivity is None else _parse_sensitivity(payload, sensitivity),
            payload=validated,
            payload_json=data,
        )

    def _enqueue(self, event: Event, exclude: Subscription | None = None) -> None:
        if self._is_closed:
            raise BusError("the bus is closed", where=f"event {event.type}", code="bus_closed")
        if len(self._queue) >= self._limit:
            _log.error("%s events are queued; %s is lost", self._limit, event.type, extra={"event_type": event.type})
            raise BusError(
                f"{self._limit} events are queued",
                where=f"event {event.type}",
                remedy="Let the event loop run between events, and subscribe slow handlers without fast=True",
            )
        if not self._queue:
            self._is_idle.clear()
            self._has_events.set()
        self._queue.append((event, exclude))

    # --- subscribe ---------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        name: str,
        handler: Handler,
        *,
        session_ids: Iterable[str] | None = None,
        event_types: Iterable[str] | None = None,
        actors: Iterable[Actor | str] | None = None,
        limit: int = 1_000,
        fast: bool = False,
        slow: bool = False,
    ) -> Subscription:
        """Call ``handler``, a function or coroutine function, for each event, in order.

        With ``fast`` the bus awaits the handler before it delivers the event to others, so it must return quickly. A
        fast handler that blocks for a second gets a queue of ``limit`` events like the others. ``slow`` declares that
        the handler must not be fast.
        """
        if fast and slow:
            raise EventError("a slow subscriber cannot be fast", where=f"subscriber {name!r}")

        def handle_first(events: Sequence[Event]) -> Awaitable[None] | None:
            return handler(events[0])

        event_filter = self._make_filter(session_ids, event_types, actors)
        return self._register(Subscription(name, handle_first, event_filter, limit=limit, is_fast=fast))

    def subscribe_batches(
        self,
        name: str,
        handler: BatchHandler,
        *,
        max_batch: int = 500,
        max_delay_s: float = 0.0,
        event_types: Iterable[str] | None = None,
    ) -> Subscription:
        """Call ``handler`` with up to ``max_batch`` queued events, collected for at most ``max_delay_s`` seconds."""
        event_filter = self._make_filter(None, event_types, None)
        return self._register(
            Subscription(name, handler, event_filter, limit=_LIMIT, max_batch=max_batch, max_delay_s=max_delay_s)
        )

    def _make_filter(
        self,
        session_ids: Iterable[str] | None,
        event_types: Iterable[str] | None,
        actors: Iterable[Actor | str] | None,
    ) -> Filter:
        types = None
        if event_types is not None:
            types = frozenset(get_event_type(name, self.event_types).event_type for name in event_types)
        return Filter(
            session_ids=None if session_ids is None else frozenset(session_ids),
            event_types=types,
            actors=None if actors is None else frozenset(Actor(actor) for actor in actors),
        )

    def _register(self, subscription: Subscription) -> Subscription:
        if self._is_closed:
            raise BusError("the bus is closed", where=f"subscriber {subscription.name!r}", code="bus_closed")
        is_running = self._dispatch_task is not None and not subscription.is_fast
        self._subscriptions[subscription] = self._start_worker(subscription) if is_running else None
        types = subscription.event_filter.event_types
        self.emit(
            BusSubscriberRegistered(
                subscriber=subscription.name, event_types=None if types is None else tuple(sorted(types))
            )
        )
        return subscription

    async def unsubscribe(self, subscription: Subscription, timeout_s: float = 5.0) -> None:
        """Deliver the events emitted so far to a subscriber, then remove it."""
        if subscription not in self._subscriptions:
            return
        if self._dispatch_task not in (None, asyncio.current_task()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._is_idle.wait()
        task = self._subscriptions.pop(subscription, None)
        subscription.close()
        if task is not None:
            await _finish_tasks({task}, timeout_s)
        if not self._is_closed:
            self.emit(BusSubscriberUnregistered(subscriber=subscription.name, undelivered=subscription.queue_size))

    def _start_worker(self, subscription: Subscription) -> asyncio.Task[None]:
        return asyncio.create_task(subscription.run(self._report_gap), name=f"dragoman-bus-{subscription.name}")

    # --- deliver -----------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while True:
            while not self._queue:
                self._is_idle.set()
                if self._is_closed:
                    return
                self._has_events.clear()
                await self._has_events.wait()
            for _ in range(min(len(self._queue), _DISPATCH_BATCH)):
                await self._deliver(*self._queue.popleft())
            if self._queue:
                await asyncio.sleep(0)  # subscribers run before their queues overflow

    async def _deliver(self, event: Event, exclude: Subscription | None) -> None:
        matches = [
            subscription
            for subscription in self._subscriptions
            if subscription is not exclude and subscription.event_filter.matches(event)
        ]
        queued = [subscription for subscription in matches if not subscription.is_fast]
        for subscription in matches:
            if subscription.is_fast:
                await self._deliver_fast(subscription, event)
        for subscription in queued:
            subscription.offer(event)

    async def _deliver_fast(self, subscription: Subscription, event: Event) -> None:
        try:
            async with asyncio.timeout(_FAST_TIMEOUT_S):
                await subscription.handle((event,))
        except TimeoutError:
            subscription.failed_count += 1
            subscription.is_fast = False
            self._subscriptions[subscription] = self._start_worker(subscription)
            _log.warning(
                "subscriber %s needed more than %s s for %s; it has a queue from now on",
                subscription.name,
                _FAST_TIMEOUT_S,
                event.type,
                extra={"subscriber": subscription.name, "event_id": event.id, "event_type": event.type},
            )

    def _report_gap(self, subscription: Subscription) -> None:
        """Emit the gap of a subscriber to itself, in its position, and to the others."""
        gap = subscription.pop_gap()
        if gap is None:
            return
        _log.warning("subscriber %s missed %s events", gap.subscriber, gap.missed, extra={"subscriber": gap.subscriber})
        event = self._make_event(gap)
        subscription.offer(event)
        with contextlib.suppress(BusError):  # full or closed: the log contains it
            self._enqueue(event, exclude=subscription)

    async def drain(self) -> None:
        """Wait until every subscriber has handled every emitted event."""
        self.start()
        is_done = False
        while not is_done:
            await self._is_idle.wait()
            for subscription in list(self._subscriptions):
                await subscription.wait_idle()
            is_done = self._is_idle.is_set()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Reject new events, deliver the queued ones, and end. Events not handled within ``timeout_s`` are lost."""
        if self._is_closed:
            return
        self.start()
        self._is_closed = True
        self._has_events.set()
        if self._dispatch_task is not None:
            await _finish_tasks({self._dispatch_task}, timeout_s)
        for subscription in self._subscriptions:
            subscription.close()
        await _finish_tasks({task for task in self._subscriptions.values() if task is not None}, timeout_s)
        lost = {subscription.name: subscription.queue_size for subscription in self._subscriptions}
        if any(lost.values()) or self._queue:
            _log.warning("closed with undelivered events: %s in the bus, then %s", len(self._queue), lost)
        self._subscriptions = {}


async def _finish_tasks(tasks: set[asyncio.Task[None]], timeout_s: float) -> None:
    """Wait for tasks, and cancel them after the timeout."""
    others = {task for task in tasks if task is not asyncio.current_task()}  # a subscriber may unsubscribe itself
    if others:
        _, late = await asyncio.wait(others, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


def _parse_actor(payload: Payload, value: Actor | str) -> Actor:
    try:
        return Actor(value)
    except ValueError as error:
        raise EventError(str(error), where=f"event {payload.event_type}") from None


def _parse_sensitivity(payload: Payload, value: Sensitivity | str) -> Sensitivity:
    default = payload.sensitivity()
    try:
        sensitivity = Sensitivity(value)
    except ValueError as error:
        raise EventError(str(error), where=f"event {payload.event_type}") from None
    if sensitivity.openness < default.openness:
        what = f"its sensitivity is {default.value}; it cannot be {sensitivity.value}, which is more private"
        raise EventError(what, where=f"event {payload.event_type}")
    return sensitivity


class Scope(_Emitter):
    """Emits the events of one turn with its session, its turn and their parents."""

    def __init__(
        self, bus: Bus, session_id: str, turn_id: str | None, actor: Actor | str | None, parents: EventParents
    ) -> None:
        self.bus = bus
        self.session_id = session_id
        self.turn_id = turn_id
        self._actor = actor
        self.parents = parents

    def emit(  # type: ignore[override]  # the options are spelled out
        self,
        payload: Payload | str,
        fields: Mapping[str, Any] | None = None,
        *,
        parent: Event | str | None = None,
        actor: Actor | str | None = None,
        sensitivity: Sensitivity | str | None = None,
    ) -> Event | None:
        """Emit an event of this turn; ``None`` if it is invalid and was dropped. An explicit ``parent`` wins."""
        if parent is None:
            name = ALIASES.get(payload, payload) if isinstance(payload, str) else payload.event_type
            subject = get_subject(fields if isinstance(payload, str) else payload) if name in SUBJECT_TYPES else ""
            parent = self.parents.find_parent(name, subject)
        event = self.bus.emit(
            payload,
            fields,
            session_id=self.session_id,
            turn_id=self.turn_id,
            parent=parent,
            actor=actor if actor is not None else self._actor,
            sensitivity=sensitivity,
        )
        if event is not None:
            self.parents.record(event)
        return event
