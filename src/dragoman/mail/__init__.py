"""Mail between agents: letters are validated, stored, delivered in order and acknowledged once.

    mail = Mail(store)
    await mail.send(letter)
    async with mail.mailbox("CA") as mailbox:
        async for delivery in mailbox: …

``dragoman.letters`` defines the letters. ``dragoman.mail.nats`` transports them between machines;
``dragoman.mail.remote`` is a client for the mail of a server.
"""

from dragoman.letters.records import DeadLetter, FailureOutcome, MailboxCounts, Receipt
from dragoman.mail.encryption import Encryptor
from dragoman.mail.mail import AckResult, Delivery, Mail, Transport
from dragoman.mail.mailbox import Mailbox
from dragoman.mail.notices import POSTMASTER
from dragoman.mail.retry_policy import RULES, RetryRule

__all__ = [
    "POSTMASTER",
    "RULES",
    "AckResult",
    "DeadLetter",
    "Delivery",
    "Encryptor",
    "FailureOutcome",
    "Mail",
    "Mailbox",
    "MailboxCounts",
    "Receipt",
    "RetryRule",
    "Transport",
]
