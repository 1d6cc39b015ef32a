"""Two agents: one writes, the other one receives its letter and reviews the text."""

import asyncio
from datetime import UTC, datetime

from dragoman import Agent
from dragoman.letters import TaskResultLetter, task_result_letter
from dragoman.mail import Mail


async def write(agent: Agent, mail: Mail) -> None:
    """Write a text and send it to the reviewer."""
    answer = await agent.ask("Write one sentence about interpreters.")
    letter = task_result_letter(
        task_id="TASK-1",
        sender_id="WRITER",
        recipient_id="REVIEWER",
        timestamp=datetime.now(UTC),
        output=answer.text,
    )
    await mail.send(letter)


async def review(agent: Agent, mail: Mail) -> str:
    """Wait for a letter, and review the text in it."""
    async with mail.mailbox("REVIEWER") as mailbox:
        async for delivery in mailbox:
            letter = delivery.letter
            if isinstance(letter, TaskResultLetter):
                answer = await agent.ask(f"Review this sentence: {letter.payload.result.output}")
                return answer.text
    return "no letter"


async def main() -> None:
    async with Agent("agents.db", model="claude-sonnet-5-5") as agent:
        mail = Mail(agent.store)
        await write(agent, mail)
        print(await review(agent, mail))


asyncio.run(main())
