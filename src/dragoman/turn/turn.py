"""One turn, from the question to the answer. Read this module first.

    choose a model, store the question
    until the model calls no more tools, or only tools whose results others provide:
        run the tools, store each result
        call the model, store its answer while it arrives
    finish the turn

A turn holds the lease of its session, and its model does not change. However it ends (answer, fault, cancellation,
crash), the next turn can use the history that it leaves. Invariant: an event is yielded after its message is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dragoman.shield import run_to_completion
from dragoman.turn.config import AgentConfig
from dragoman.turn.finish import cancel_turn, fail_turn, finish_turn
from dragoman.turn.model_call import call_model
from dragoman.turn.services import AgentServices
from dragoman.turn.start import start_turn, store_question
from dragoman.turn.state import TurnUsage
from dragoman.turn.summary import summarize_history
from dragoman.turn.tool_calls import run_tools
from dragoman.turn.types import TurnEvent, TurnJournal, TurnRequest


async def run(
    services: AgentServices,
    config: AgentConfig,
    request: TurnRequest,
    usage: TurnUsage | None = None,
    journal: TurnJournal | None = None,
) -> AsyncGenerator[TurnEvent, None]:
    """Run one turn and yield its events. Closing the generator, or cancelling its task, cancels the turn."""
    async with services.store.turns.lease(request.session_id).until_end() as lease:
        turn = await start_turn(services, config, request, lease, usage=usage, journal=journal)
        try:
            while (start := await run_to_completion(store_question(turn))) is None:  # the session has changed meanwhile
                turn = await start_turn(services, config, request, lease, usage=usage, journal=journal)
            yield start
            if config.summarize:
                await summarize_history(turn)
            while True:
                lease.check()
                if turn.runnable_calls:  # in the first round, calls that were approved
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
