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

from dragoman.shield import run_to_completion
from dragoman.turn.answering import call_model
from dragoman.turn.finish import cancel_turn, fail_turn, finish_turn
from dragoman.turn.start import start_turn, store_question
from dragoman.turn.summary import summarize_history
from dragoman.turn.tally import TurnUsage
from dragoman.turn.tool_calls import run_tools
from dragoman.turn.types import TurnEvent, TurnRequest

if TYPE_CHECKING:
    from dragoman.turn.agent import Agent


async def run(agent: Agent, request: TurnRequest, usage: TurnUsage | None = None) -> AsyncGenerator[TurnEvent, None]:
    """One turn, as it happens. To close it, or to cancel the task that waits for it, cancels the turn."""
    async with agent.store.turns.lease(request.session_id) as lease:
        turn = await start_turn(agent, request, lease, usage)
        try:
            yield await run_to_completion(store_question(turn))
            if agent.summarize:
                await summarize_history(turn)
            while True:
                lease.check()
                if turn.runnable_calls:  # the first time, what was approved
                    async with aclosing(run_tools(turn)) as results:
                        async for result in results:
                            yield result
                if not turn.should_continue:
                    break
                lease.check()
                async with aclosing(call_model(turn)) as events:
                    async for event in events:
                        yield event
            end = await run_to_completion(finish_turn(turn))
        except (asyncio.CancelledError, GeneratorExit):
            await run_to_completion(cancel_turn(turn))
            raise
        except Exception as error:
            await run_to_completion(fail_turn(turn, error))
            raise
    yield end
