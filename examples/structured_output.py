"""Turn a text into values of a type of yours."""

from dataclasses import dataclass
from typing import Literal

import dragoman


@dataclass
class Ticket:
    title: str
    kind: Literal["bug", "question", "wish"]
    urgency: int
    product: str | None = None


MAIL = "Since Monday the export of invoices ends with an empty file. We cannot close the month!"

ticket = dragoman.ask(f"Make a ticket of this mail: {MAIL}", model="gpt-5", output=Ticket).parsed
print(f"{ticket.kind}, urgency {ticket.urgency}: {ticket.title}")
