"""What a server is told when it is started. Values, and nothing else.

The one rule: whatever can be said here can be said on the command line, by a variable and in the configuration file.
"""

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
    """How to serve."""

    store: str  # its URL
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = (
        None  # 0 for any that is free; without one, from 8000 on
    )
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    attachments: str | None = None  # the URL of where they are kept; without one, a folder beside the store
    base_url: str | None = None  # where clients reach the server; without one, where it listens
    model: str | None = None  # who answers when nobody chose
    system: str | None = None  # what the model is told before everything else
    tool: tuple[str, ...] = ()  # built-in tools that it may use
    mcp: tuple[str, ...] = ()  # MCP servers of the configuration file whose tools it may use
    workspace: str | None = None  # the folder in which tools work; without one, that of the process
    nats: tuple[str, ...] = ()  # brokers that carry letters to other stores; without one, mail stays in this one
    nats_replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1  # on how many brokers a letter is
    nats_monitor: str | None = None  # where a broker says how safe what it has is
    nats_user: str | None = None
    nats_password: str | None = None
    nats_token: str | None = None
    nats_credentials: str | None = None  # a .creds file
    nats_nkey: str | None = None  # a file with the seed of a user's nkey
    nats_ca: str | None = None  # certificates that the broker's is checked with
    nats_cert: str | None = None  # the certificate of this server
    nats_key: str | None = None  # and its key
    nats_tls_first: bool = False  # as handshake_first of the broker
    nats_sign_only: bool = False  # the broker may read the letters that it carries
    allow_origin: tuple[Origin, ...] = ()  # pages of other servers that may ask from a browser
    require_keys: bool = False  # also on this machine
    keys_file: str | None = None  # where the pepper of the keys is; without one, beside the store
    grace_s: Seconds = 30.0  # how long running turns may take after the server was told to stop
    read_timeout_s: Seconds = 30.0  # a request that does not go on for so long is closed
    keep_alive_s: Seconds = 15.0  # a connection on which nothing is asked for so long is closed
    max_pending_runs: Annotated[int, msgspec.Meta(ge=1)] = 100  # of one user
    keep_run_events_days: Annotated[float, msgspec.Meta(gt=0, le=36_500)] = 7.0  # what runs have told, behind their end
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def requires_keys(self) -> bool:
        """Whether nobody is let in without a key.

        Who names another address for the server than a loopback one has something in front of it that lets others in.
        """
        return self.require_keys or not self.is_loopback or (self.base_url is not None and not _is_local(self.base_url))


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
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
    """Where attachments are kept unless somebody said otherwise: in a folder beside the file of the store."""
    if not store.startswith("sqlite:///"):
        return None
    file = Path(unquote(store.removeprefix("sqlite:///"))).absolute()
    return f"file://{quote(str(file.with_name(f'{file.name}-attachments')))}"


def private_paths(config: ServerConfig) -> tuple[Path, ...]:
    """The files and folders of this machine, besides those of the store and the settings, that no tool may touch."""
    attachments = config.attachments or default_attachments_url(config.store) or ""
    folders = [unquote(urlsplit(attachments).path)] if attachments.startswith("file:///") else []
    files = (config.keys_file, config.nats_credentials, config.nats_nkey, config.nats_key)
    return tuple(Path(path).expanduser() for path in (*folders, *files) if path is not None)


def base_path(config: ServerConfig) -> str:
    """The path under which clients reach the server: that of its base URL, without a slash at its end."""
    return urlsplit(config.base_url or "").path.rstrip("/")


def address(config: ServerConfig) -> str:
    """Where clients reach the server."""
    if config.base_url is not None:
        return config.base_url.rstrip("/")
    host = f"[{config.host.strip('[]')}]" if ":" in config.host else config.host
    return f"http://{host}:{config.port}"
