"""The scopes of API keys. The command line uses them, also where the server is not installed."""

from __future__ import annotations

import re
from typing import Final

TOOLS: Final = "tools"
ADMIN: Final = "admin"
SCOPES: Final = frozenset(("chat", TOOLS, "history:write", "mail", ADMIN))
RECORD_OFF: Final = "record:off"  # restricts a key: its calls of the gateway are not stored
RECORD_REDACTED: Final = "record:redacted"  # they are stored without content
_AGENT: Final = re.compile(r"agent:[A-Za-z0-9_.:-]{1,128}")


def is_scope(name: str) -> bool:
    """Whether this scope exists."""
    return name in SCOPES or name in (RECORD_OFF, RECORD_REDACTED) or _AGENT.fullmatch(name) is not None
