"""The configuration of a server. Every field is also an option of ``dragoman serve``, a variable and a file setting."""

from __future__ import annotations

import functools
import ipaddress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec

Origin = Annotated[str, msgspec.Meta(pattern="^https?://([a-z0-9.-]+|\\[[0-9a-f:.]+\\])(:[0-9]{1,5})?$")]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a server."""

    store: str  # URL
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = (
        None  # 0 for any free port; by default the first free one from 8000 on
    )
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    attachments: str | None = None  # URL of their storage; by default a folder beside the store
    base_url: str | None = None  # public URL; by default the address of the listener
    model: str | None = None  # default model
    system: str | None = None  # system prompt
    tool: tuple[str, ...] = ()  # built-in tools that the model may use
    mcp: tuple[str, ...] = ()  # MCP servers of the configuration file whose tools the model may use
    workspace: str | None = None  # folder in which tools work; by default the current one
    delegate: bool = False  # models may delegate tasks to models of other tiers
    summarize: bool = False  # summarize the oldest turns of long conversations
    policy: str | None = None  # routing policy file, in place of those of the workspaces
    mail_agent: tuple[str, ...] = ()  # agents that answer letters: NAME, TEAM/NAME or NAME=MODEL
    mail_agent_tools: bool = False  # runs of letters may use the tools
    nats: tuple[str, ...] = ()  # brokers that transport letters to other stores; without one, mail stays in this store
    nats_replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1  # number of brokers that store a letter
    nats_monitor: str | None = None  # monitoring URL of a broker, for its durability
    nats_user: str | None = None
    nats_password: str | None = None
    nats_token: str | None = None
    nats_credentials: str | None = None  # a .creds file
    nats_nkey: str | None = None  # file with the seed of a user's nkey
    nats_ca: str | None = None  # CA certificates for the broker's certificate
    nats_cert: str | None = None  # client certificate
    nats_key: str | None = None  # its key
    nats_tls_first: bool = False  # handshake_first of the broker
    nats_sign_only: bool = False  # sign letters without encrypting them
    record: Literal["off", "durable"] = "durable"  # whether calls of the gateway are stored
    allow_origin: tuple[Origin, ...] = ()  # origins whose pages may send requests (CORS)
    require_keys: bool = False  # also on this machine
    keys_file: str | None = None  # file with the pepper of the API keys; by default beside the store
    grace_s: Seconds = 30.0  # grace period of active turns at shutdown
    read_timeout_s: Seconds = 30.0  # a request without progress for this time is closed
    keep_alive_s: Seconds = 15.0  # an idle connection is closed after this time
    max_pending_runs: Annotated[int, msgspec.Meta(ge=1)] = 100  # active runs of one user
    keep_run_events_days: Annotated[float, msgspec.Meta(gt=0, le=36_500)] = (
        7.0  # retention of run events after the end of the run
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def requires_keys(self) -> bool:
        """Whether every caller needs an API key.

        A base URL with another host means that a proxy forwards requests of other machines.
        """
        return self.require_keys or not self.is_loopback or (self.base_url is not None and not _is_local(self.base_url))


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether a host name or an address is a loopback address."""
    host = host.removeprefix("[").removesuffix("]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_local(base_url: str) -> bool:
    return is_loopback(urlsplit(base_url).hostname or "")


def default_attachments_url(store: str) -> str | None:
    """The default storage of attachments: a folder beside the SQLite file of the store."""
    if not store.startswith("sqlite:///"):
        return None
    file = Path(unquote(store.removeprefix("sqlite:///"))).absolute()
    return f"file://{quote(str(file.with_name(f'{file.name}-attachments')))}"


def private_paths(config: ServerConfig) -> tuple[Path, ...]:
    """Local files and folders that tools must not access, besides those of the store and the settings."""
    attachments = config.attachments or default_attachments_url(config.store) or ""
    folders = [unquote(urlsplit(attachments).path)] if attachments.startswith("file:///") else []
    files = (config.keys_file, config.nats_credentials, config.nats_nkey, config.nats_key)
    return tuple(Path(path).expanduser() for path in (*folders, *files) if path is not None)


def base_path(config: ServerConfig) -> str:
    """The path of the base URL, without a trailing slash."""
    return urlsplit(config.base_url or "").path.rstrip("/")


def address(config: ServerConfig) -> str:
    """The URL at which clients reach the server."""
    if config.base_url is not None:
        return config.base_url.rstrip("/")
    host = f"[{config.host.strip('[]')}]" if ":" in config.host else config.host
    return f"http://{host}:{config.port}"
