"""Agent to agent: letters that are checked, delivered, and acted on once.

    mail = Mail(store)                                        in the store that there is anyway
    await mail.send(letter)
    async with mail.mailbox("CA") as mailbox:
        async for delivery in mailbox: …

What letters look like is ``dragoman.letters``. Between machines, ``dragoman.mail.nats`` carries them;
``dragoman.mail.remote`` has the mail of a server over HTTP.
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
