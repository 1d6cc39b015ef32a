"""The tool ``send_letter``, with which a model writes to another agent.

    agent = Agent(store, tools=[send_letter_tool(Mail(store), "ARCH")])

The letter is linked to the session and the turn of the call. A call that is run again sends the same letter, which is
stored once. Its answer is delivered to the mailbox of the sender.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from dragoman.errors import InputError, ToolFailedError
from dragoman.exchange import SideEffects, ToolDefinition
from dragoman.letters import task_result_letter
from dragoman.mail import Mail
from dragoman.tools import Tool
from dragoman.tools.tool import ToolContext

SEND_LETTER: Final = "send_letter"
_NAME: Final = {"type": "string", "pattern": "^[A-Z0-9_-]+$", "maxLength": 128}
_DEFINITION: Final = ToolDefinition(
    name=SEND_LETTER,
    description="Send a letter to another agent. Its answer arrives later, as a new message.",
    input_schema={
        "type": "object",
        "properties": {
            "recipient_id": {**_NAME, "description": "The agent, in capital letters, such as ARCH; HUMAN is a person."},
            "task_id": {**_NAME, "description": "The task that the letter is about, such as TASK-7."},
            "text": {"type": "string", "minLength": 1, "maxLength": 100_000},
        },
        "required": ["recipient_id", "task_id", "text"],
        "additionalProperties": False,
    },
    side_effects=SideEffects.NETWORK,
    requires_workspace=False,
)


class LetterSender(msgspec.Struct, frozen=True):
    """The mail, the name and the hops of the agent that calls the tool."""

    mail: Mail
    name: str
    hops: int = 0  # letters of agents before this one


FindSender = Callable[[ToolContext], Awaitable[LetterSender]]


def send_letter_tool(mail: Mail, sender: str) -> Tool:
    """The tool of one agent."""

    async def find_sender(_: ToolContext) -> LetterSender:
        return LetterSender(mail, sender)

    return make_letter_tool(find_sender)


def make_letter_tool(find_sender: FindSender) -> Tool:
    """The tool of several agents: the sender is found by the session of a call."""

    async def run(input: dict[str, Any], context: ToolContext) -> str:  # noqa: A002
        sender = await find_sender(context)
        mail = sender.mail
        try:
            letter = task_result_letter(
                sender_id=sender.name,
                recipient_id=input["recipient_id"],
                task_id=input["task_id"],
                timestamp=mail.store.clock(),
                output=input["text"],
                message_id=f"tool:{context.session_id}:{context.tool_use_id}"[-128:],
                context={"hops": sender.hops + 1},
            )
            receipt = await mail.send(letter, session_id=context.session_id, turn_id=context.turn_id)
        except InputError as error:
            raise ToolFailedError(f"The letter was rejected: {error}", error_class="validation_error") from None
        return f"Letter {receipt.letter_id} to {receipt.recipient_id} is stored."

    return Tool(definition=_DEFINITION, run=run)
