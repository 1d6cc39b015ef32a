"""The state that all requests of one process share: ``request.app.state.dragoman``.

Invariant: nothing in it belongs to one request or one user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.attachments import Attachments
from dragoman.gateway import make_gateway
from dragoman.mail import Mail
from dragoman.server.admin.audit import AuditLog
from dragoman.server.admin.counters import Counters
from dragoman.server.auth.api_keys import KeyRing, load_peppers
from dragoman.server.auth.local_access import LocalToken
from dragoman.server.config import ServerConfig
from dragoman.server.provider_settings import ProviderSettings
from dragoman.store import Store
from dragoman.turn import Agent

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from dragoman.server.auth.principal import FindUser
    from dragoman.server.mail.agents import LetterRuns
    from dragoman.server.runs import RunRegistry


class AppState:
    """The store, agent, attachments, mail, gateway, configuration, keys, counters and active runs of a server."""

    runs: RunRegistry  # set last, because it needs the rest of the state
    letter_runs: LetterRuns  # set with it
    app: Starlette  # set by ``make_app``

    def __init__(
        self,
        store: Store,
        agent: Agent,
        attachments: Attachments,
        config: ServerConfig,
        *,
        base_url: str | None = None,
        find_user: FindUser | None = None,
    ) -> None:
        self.store = store
        self.agent = agent
        self.attachments = attachments
        self.config = config
        self.base_url = base_url  # base of the URLs; none: the address of the request
        self.find_user = find_user
        self.requires_keys = config.requires_keys
        self.peppers = load_peppers(config.store, config.keys_file)
        self.keys = KeyRing(store, self.peppers)
        self.mail = Mail(store)
        self.gateway = make_gateway(agent.services, config.record)
        self.audit = AuditLog(agent.bus)
        self.counters = Counters()  # replaced by counters with the shared table if there are several workers
        self.provider_settings = ProviderSettings(agent, self.gateway, is_watching=find_user is None)
        self.token = LocalToken()  # for other users of this machine, on a server without keys
