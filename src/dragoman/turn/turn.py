"""One turn: from what a user says to the answer. Read this first.

    choose a model, store the question
    until the model asks for nothing more, or for something that others have to give:
        run the tools that it asks for, storing each result as it comes
        call it, storing its answer as it arrives
    tell how it ended

Every line below is a room of its own. A turn has its session to itself (a lease), and its model does not change while
it lasts. However it ends, by an answer, a fault, a cancel or a crash, the history that it leaves is one that the next
turn can use. The one rule: nothing is told before it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from dragoman.turn.answering import answered
from dragoman.turn.beginning import begun, question_stored
from dragoman.turn.ending import cancelled, ended, failed
from dragoman.turn.summary import summarised
from dragoman.turn.tally import Tally
from dragoman.turn.using import results_of
from dragoman.turn.values import Asked, TurnEvent

if TYPE_CHECKING:
    from dragoman.turn.agent import Agent


async def run(agent: Agent, asked: Asked, tally: Tally | None = None) -> AsyncGenerator[TurnEvent, None]:
    """One turn, as it happens. To close it, or to cancel the task that waits for it, cancels the turn."""
    store = agent.store
    async with store.turn(asked.session_id) as tenure:
        turn = await begun(agent, asked, tenure, tally)
        try:
            yield await store.unbroken(question_stored(turn))
            if agent.summarises:
                await summarised(turn)
            while True:
                tenure.check()
                if turn.runnable:  # the first time, what was approved
                    async with aclosing(results_of(turn)) as results:
                        async for result in results:
                            yield result
                if not turn.goes_on:
                    break
                tenure.check()
                async with aclosing(answered(turn)) as events:
                    async for event in events:
                        yield event
            over = await store.unbroken(ended(turn))
        except (asyncio.CancelledError, GeneratorExit):
            await store.unbroken(cancelled(turn))
            raise
        except Exception as error:
            await store.unbroken(failed(turn, error))
            raise
    yield over
