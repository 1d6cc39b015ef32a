"""What a key may allow, by name.

chat             to ask, and to see one's own threads
tools            to let the model use the tools that the server offers
history:write    to bring messages of other roles than the user's own
mail             to send and receive letters
admin            to see what the server measures about itself
agent:ID         to speak as that agent
"""

from __future__ import annotations

import re
from typing import Final

TOOLS: Final = "tools"
ADMIN: Final = "admin"
SCOPES: Final = frozenset(("chat", TOOLS, "history:write", "mail", ADMIN))
_AGENT: Final = re.compile(r"agent:[A-Za-z0-9_.:-]{1,128}")


def is_scope(name: str) -> bool:
    """Whether there is such a scope."""
    return name in SCOPES or _AGENT.fullmatch(name) is not None
