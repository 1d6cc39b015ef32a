"""Who is told: events come in, and go to everybody who asked for them.

    async with Bus() as bus:
        bus.subscribe("screen", show, event_types=["llm.call_completed"])
        turn = bus.scope(session_id, turn_id)
        turn.emit(TurnStarted(...))

``emit`` puts an event into a queue and returns at once. One task takes them out, in order: it awaits subscribers of the
fast path one after the other, and puts the event into the queue of each other one, which has a task of its own. A
subscriber that raises loses that event; one that is slow loses events when its queue is full, and is told so, at the
place where they are missing, by ``bus.gap_detected``. Nothing is delivered twice.

The one rule: nothing that a subscriber does can hold up, break or change what another one gets, or whoever emits.
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

from dragoman.bus.catalogue import (
    ALIASES,
    EVENT_TYPES,
    BusGapDetected,
    BusSubscriberRegistered,
    BusSubscriberUnregistered,
    get_event_type,
    index_event_types,
    parse_payload,
    validate_payload,
)
from dragoman.bus.lineage import SUBJECT_TYPES, EventParents, get_subject
from dragoman.bus.types import SYSTEM, Actor, Event, Filter, Payload, Sensitivity
from dragoman.errors import BusError, DragomanError, EventError
from dragoman.ids import UlidSource

Handler = Callable[[Event], Awaitable[None] | None]
BatchHandler = Callable[[Sequence[Event]], Awaitable[None] | None]

_log: Final = logging.getLogger("dragoman.bus")
_LIMIT: Final = 10_000
_DISPATCH_BATCH: Final = 64  # delivered before anybody else in the loop has a turn
_FAST_TIMEOUT_S: Final = 1.0  # how long a subscriber of the fast path may take before it loses that place


def _clock_us() -> int:
    return time.time_ns() // 1_000


class Subscription:
    """A subscriber: what it wants, what waits for it, and what it has missed."""

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
        self.missed_count = 0  # events that found its queue full, ever
        self.failed_count = 0  # events that it raised at, ever
        self._handler = handler
        self._limit = limit
        self._max_batch = max_batch
        self._max_delay_s = max_delay_s
        self._queue: deque[Event] = deque()
        self._gap: list[Event] | None = None  # the first and the last event that were missed since the last delivery
        self._gap_size = 0
        self._has_events = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_closing = False
        self._flush = asyncio.Event()

    @property
    def queue_size(self) -> int:
        """How many events wait for it."""
        return len(self._queue)

    def offer(self, event: Event) -> None:
        """Let an event wait for it. Once one found no room, none does until half of the queue is free."""
        if self._gap is not None or len(self._queue) >= self._limit:
            self._gap = [self._gap[0] if self._gap else event, event]
            self._gap_size += 1
            self.missed_count += 1
            return
        self._queue.append(event)
        self._is_idle.clear()
        self._has_events.set()

    def pop_gap(self) -> BusGapDetected | None:
        """What was missed, once there is room again."""
        if self._gap is None or len(self._queue) > self._limit // 2:
            return None
        first, last = self._gap
        self._gap, missed, self._gap_size = None, self._gap_size, 0
        return BusGapDetected(subscriber=self.name, missed=missed, first_event_id=first.id, last_event_id=last.id)

    async def run(self, on_dequeue: Callable[[Subscription], None]) -> None:
        """Take what waits, until it is told to end and nothing waits any more."""
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
        """Give it events; what it raises is logged, and is nobody else's business."""
        try:
            result = self._handler(batch)
            if inspect.isawaitable(result):
                await result
        except (Exception, asyncio.CancelledError) as error:  # the others are told, whatever it is
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
        """Let more events come, so that a batch is worth its name; not when somebody waits for it."""
        if self._max_delay_s and not self._is_closing and len(self._queue) < self._max_batch:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._max_delay_s):  # wait_for may forget a cancel (Python 3.11)
                    await self._flush.wait()

    async def wait_idle(self) -> None:
        """Wait until nothing waits for it, and it has taken everything."""
        self._flush.set()
        await self._is_idle.wait()
        self._flush.clear()

    def close(self) -> None:
        """Say that nothing more will come."""
        self._is_closing = True
        self._flush.set()
        self._has_events.set()


def _is_cancelled() -> bool:
    """Whether this task is to end, rather than something that it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class Bus:
    """Takes events and tells everybody who asked. Use it with ``async with``, in the thread of one event loop.

    ``strict`` raises on an event that is not as the catalogue has it; otherwise it is logged and dropped. ``clock_us``
    gives the time in microseconds, ``ids`` the next event's id. ``payloads`` are event types of an application's own.
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
        self._now_us = 0  # of the newest event, so that its id and its time are of the same moment
        self._ids = ids or UlidSource(lambda: self._now_us // 1_000, lambda: secrets.randbits(80)).next
        self._limit = limit
        self._queue: deque[tuple[Event, Subscription | None]] = deque()  # each with whom it is not for
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
        """Begin to deliver. What was emitted before has waited."""
        if self._dispatch_task is None and not self._is_closed:
            self._dispatch_task = asyncio.create_task(self._dispatch(), name="dragoman-bus")
            for subscription, task in self._subscriptions.items():
                if task is None and not subscription.is_fast:
                    self._subscriptions[subscription] = self._start_worker(subscription)

    # --- emitting ----------------------------------------------------------------------------------------------------

    def emit(
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
        """Say that something happened: a payload, or the name of an event type and its fields.

        The event is returned, so that others can name it as their parent; ``None`` if it was not as the catalogue has
        it and was dropped. ``BusError`` if too many events wait, or the bus was closed.
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
        """What emits the events of one turn, and knows the parent of each; of the same turn, they know the same."""
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
        if self.event_types.get(payload.event_type) is not type(payload):
            get_event_type(payload.event_type, self.event_types)
            raise EventError(f"{type(payload).__name__} is not its payload", where=f"event {payload.event_type}")
        if not session_id:
            raise EventError("it belongs to no session", where=f"event {payload.event_type}", remedy='Say "system"')
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
            raise BusError("it is closed", where=f"event {event.type}", code="bus_closed")
        if len(self._queue) >= self._limit:
            _log.error("%s events wait already; %s is lost", self._limit, event.type, extra={"event_type": event.type})
            raise BusError(
                f"{self._limit} events wait already",
                where=f"event {event.type}",
                remedy="Let the event loop run between events, or leave the fast path to subscribers that are fast",
            )
        if not self._queue:  # else that was said already
            self._is_idle.clear()
            self._has_events.set()
        self._queue.append((event, exclude))

    # --- subscribers -------------------------------------------------------------------------------------------------

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
        """Ask for events, one at a time, in order. ``take`` may be a coroutine function.

        With ``fast``, the event is awaited before the next one is delivered to anybody, so ``take`` must do next to
        nothing: who takes a second once has a queue of ``limit`` events from then on, like everybody else. ``slow``
        says that it never may be.
        """
        if fast and slow:
            raise EventError("what is slow cannot be on the fast path", where=f"subscriber {name!r}")

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
        session_ids: Iterable[str] | None = None,
        event_types: Iterable[str] | None = None,
        actors: Iterable[Actor | str] | None = None,
        limit: int = _LIMIT,
    ) -> Subscription:
        """Ask for events, as many at a time as wait, up to ``most``; with ``max_delay_s``, those of so many seconds."""
        event_filter = self._make_filter(session_ids, event_types, actors)
        return self._register(
            Subscription(name, handler, event_filter, limit=limit, max_batch=max_batch, max_delay_s=max_delay_s)
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
            raise BusError("it is closed", where=f"subscriber {subscription.name!r}", code="bus_closed")
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
        """Deliver what was emitted so far to a subscriber, and tell it nothing more."""
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

    # --- delivering --------------------------------------------------------------------------------------------------

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
                await asyncio.sleep(0)  # so that whoever is fast enough finds the time to be

    async def _deliver(self, event: Event, exclude: Subscription | None) -> None:
        matches = [one for one in self._subscriptions if one is not exclude and one.event_filter.matches(event)]
        queued = [one for one in matches if not one.is_fast]
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
                "subscriber %s took more than %s s at %s; it has a queue of its own from now on",
                subscription.name,
                _FAST_TIMEOUT_S,
                event.type,
                extra={"subscriber": subscription.name, "event_id": event.id, "event_type": event.type},
            )

    def _report_gap(self, subscription: Subscription) -> None:
        """There is room again: say what was missed, to whoever missed it and to the others."""
        gap = subscription.pop_gap()
        if gap is None:
            return
        _log.warning("subscriber %s missed %s events", gap.subscriber, gap.missed, extra={"subscriber": gap.subscriber})
        event = self._make_event(gap)
        subscription.offer(event)
        with contextlib.suppress(BusError):  # full or closed: the log has it
            self._enqueue(event, exclude=subscription)

    async def drain(self) -> None:
        """Wait until everything that was emitted has been handed to every subscriber and taken."""
        self.start()
        is_done = False
        while not is_done:
            await self._is_idle.wait()
            for subscription in list(self._subscriptions):
                await subscription.wait_idle()
            is_done = self._is_idle.is_set()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Take no more events, deliver those that wait, and end. Who is not done after that time loses the rest."""
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
            _log.warning("closed with events that nobody took: %s in all, then %s", len(self._queue), lost)
        self._subscriptions = {}


async def _finish_tasks(tasks: set[asyncio.Task[None]], timeout_s: float) -> None:
    """Wait for tasks to end, and end them."""
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
    least = payload.sensitivity()
    try:
        sensitivity = Sensitivity(value)
    except ValueError as error:
        raise EventError(str(error), where=f"event {payload.event_type}") from None
    if sensitivity.openness < least.openness:
        what = f"it is {least.value}, and may be said to be less private than that, never {sensitivity.value}"
        raise EventError(what, where=f"event {payload.event_type}")
    return sensitivity


class Scope:
    """Emits the events of one turn: its session, its turn and the parent of each are known."""

    def __init__(
        self, bus: Bus, session_id: str, turn_id: str | None, actor: Actor | str | None, parents: EventParents
    ) -> None:
        self.bus = bus
        self.session_id = session_id
        self.turn_id = turn_id
        self._actor = actor
        self.parents = parents

    def emit(
        self,
        payload: Payload | str,
        fields: Mapping[str, Any] | None = None,
        *,
        parent: Event | str | None = None,
        actor: Actor | str | None = None,
        sensitivity: Sensitivity | str | None = None,
    ) -> Event | None:
        """Say that something happened in this turn; ``None`` if it was dropped."""
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
