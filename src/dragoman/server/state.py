"""What all requests of one process share: ``request.app.state.dragoman``.

The one rule: nothing here belongs to one request or to one user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.attachments import Attachments
from dragoman.mail import Mail
from dragoman.server.admin.audit import AuditLog
from dragoman.server.admin.counters import Counters
from dragoman.server.auth.api_keys import KeyRing, load_peppers
from dragoman.server.auth.local_access import LocalToken
from dragoman.server.config import ServerConfig
from dragoman.store import Store
from dragoman.turn import Agent

if TYPE_CHECKING:
    from dragoman.server.runs import RunRegistry


class AppState:
    """A store, an agent, attachments, mail, what was chosen when the server was started, and the runs that go on."""

    runs: RunRegistry  # which know the rest, and so are given when it is there

    def __init__(self, store: Store, agent: Agent, attachments: Attachments, config: ServerConfig) -> None:
        self.store = store
        self.agent = agent
        self.attachments = attachments
        self.config = config
        self.peppers = load_peppers(config.store, config.keys_file)
        self.keys = KeyRing(store, self.peppers)
        self.mail = Mail(store)
        self.audit = AuditLog(agent.bus)
        self.counters = Counters()  # of this worker alone, unless it is given the table that all of them share
        self.token = LocalToken()  # of other users of this machine, where there are no keys
