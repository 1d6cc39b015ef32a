"""What all requests of one process share: ``request.app.state.doors``.

The one rule: nothing here belongs to one request or to one user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.attachments import Attachments
from dragoman.mail import Mail
from dragoman.server.audit import Audit
from dragoman.server.counters import Counters
from dragoman.server.keys import KeyRing, peppers_for
from dragoman.server.local_token import LocalToken
from dragoman.server.options import ServeOptions
from dragoman.store import Store
from dragoman.turn import Agent

if TYPE_CHECKING:
    from starlette.requests import Request

    from dragoman.server.runs import Runs


class Doors:
    """A store, an agent, attachments, mail, what was chosen when the server was started, and the runs that go on."""

    runs: Runs  # which know the rest, and so are given when it is there

    def __init__(self, store: Store, agent: Agent, attachments: Attachments, options: ServeOptions) -> None:
        self.store = store
        self.agent = agent
        self.attachments = attachments
        self.options = options
        self.peppers = peppers_for(options.store, options.keys_file)
        self.keys = KeyRing(store, self.peppers)
        self.mail = Mail(store)
        self.audit = Audit(agent.bus)
        self.counters = Counters()  # of this worker alone, unless it is given the table that all of them share
        self.token = LocalToken()  # of other users of this machine, where there are no keys


def doors_of(request: Request) -> Doors:
    """What all requests share."""
    doors: Doors = request.app.state.doors
    return doors
