"""The Agents SDK of OpenAI, unchanged, on a server with the Responses API."""

import asyncio

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def read_note(path: str) -> str:
    """Read a note."""
    return f"The note {path} is about quinces."


def run_turns(value):
    """Run two turns; the second one continues the first by the id of its last response."""
    return asyncio.run(_run_turns(value))


async def _run_turns(value):
    client = AsyncOpenAI(base_url=value["base_url"], api_key="any", max_retries=0)
    set_default_openai_client(client, use_for_tracing=False)
    agent = Agent(name="Reader", instructions="Be brief.", model=value["model"], tools=[read_note])
    first = await Runner.run(agent, "Read note a.")
    second = Runner.run_streamed(agent, "And now?", previous_response_id=first.last_response_id)
    kinds = [event.type async for event in second.stream_events()]
    await client.close()
    return {"first": first.final_output, "second": second.final_output, "events": sorted(set(kinds))}
