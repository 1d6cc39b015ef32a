"""``dragoman serve``: the chat API and the web page, until somebody says stop.

Each option is taken from the command line, else from its variable, else from ``[serve]`` in the configuration file.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter, validators

from dragoman import settings as keys
from dragoman.cli.options import StoreOption, resolve_store_url
from dragoman.errors import InputError, SettingsError
from dragoman.server.config import ServerConfig

_Port = Annotated[int | None, Parameter(env_var="DRAGOMAN_SERVE_PORT", validator=validators.Number(gte=0, lte=65535))]
_Count = Annotated[int | None, Parameter(env_var="DRAGOMAN_SERVE_WORKERS", validator=validators.Number(gte=1, lte=256))]
_Seconds = validators.Number(gt=0, lte=86_400)


def serve(
    *,
    host: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_HOST")] = None,
    port: _Port = None,
    store: StoreOption = None,
    workers: _Count = None,
    attachments: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_ATTACHMENTS")] = None,
    base_url: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_BASE_URL")] = None,
    model: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_MODEL")] = None,
    system: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_SYSTEM")] = None,
    tool: Annotated[tuple[str, ...], Parameter(env_var="DRAGOMAN_SERVE_TOOL")] = (),
    mcp: Annotated[tuple[str, ...], Parameter(env_var="DRAGOMAN_SERVE_MCP")] = (),
    workspace: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_WORKSPACE")] = None,
    nats: Annotated[tuple[str, ...], Parameter(env_var="DRAGOMAN_SERVE_NATS")] = (),
    nats_replicas: Annotated[
        int | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_REPLICAS", validator=validators.Number(gte=1, lte=5))
    ] = None,
    nats_monitor: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_MONITOR")] = None,
    nats_user: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_USER")] = None,
    nats_password: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_PASSWORD")] = None,
    nats_token: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_TOKEN")] = None,
    nats_credentials: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_CREDENTIALS")] = None,
    nats_nkey: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_NKEY")] = None,
    nats_ca: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_CA")] = None,
    nats_cert: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_CERT")] = None,
    nats_key: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_KEY")] = None,
    nats_tls_first: Annotated[bool | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_TLS_FIRST", negative=())] = None,
    nats_sign_only: Annotated[bool | None, Parameter(env_var="DRAGOMAN_SERVE_NATS_SIGN_ONLY", negative=())] = None,
    allow_origin: Annotated[tuple[str, ...], Parameter(env_var="DRAGOMAN_SERVE_ALLOW_ORIGIN")] = (),
    require_keys: Annotated[bool | None, Parameter(env_var="DRAGOMAN_SERVE_REQUIRE_KEYS", negative=())] = None,
    keys_file: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_KEYS_FILE")] = None,
    grace_s: Annotated[float | None, Parameter(env_var="DRAGOMAN_SERVE_GRACE_S", validator=_Seconds)] = None,
    read_timeout_s: Annotated[
        float | None, Parameter(env_var="DRAGOMAN_SERVE_READ_TIMEOUT_S", validator=_Seconds)
    ] = None,
    keep_alive_s: Annotated[float | None, Parameter(env_var="DRAGOMAN_SERVE_KEEP_ALIVE_S", validator=_Seconds)] = None,
    max_pending_runs: Annotated[
        int | None, Parameter(env_var="DRAGOMAN_SERVE_MAX_PENDING_RUNS", validator=validators.Number(gte=1))
    ] = None,
    keep_run_events_days: Annotated[
        float | None,
        Parameter(env_var="DRAGOMAN_SERVE_KEEP_RUN_EVENTS_DAYS", validator=validators.Number(gt=0, lte=36_500)),
    ] = None,
    log_level: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_LOG_LEVEL")] = None,
) -> None:
    """Serve the chat API and the web page.

    Parameters
    ----------
    host
        Where to listen. Without it, 127.0.0.1, which only this machine reaches; for any other, callers need keys.
    port
        The port to listen at; 0 for any that is free. Without it, 8000, or the next one that is free.
    workers
        How many processes serve. Without it, one.
    attachments
        Where attachments are kept: file:///folder, s3://bucket/prefix or supabase://host/bucket. Without it, a folder
        beside the SQLite file of the store.
    base_url
        Where clients reach the server, if something stands in front of it. Signed URLs begin so.
    model
        Who answers when nobody chose: an id or an alias.
    system
        What the model is told before everything else.
    tool
        A built-in tool that it may use: read_file, list_files, search_files, write_file, run_command or ask_user; say
        it again for more. Those that change something are run when the caller has approved.
    mcp
        An MCP server of the configuration file whose tools it may use; say it again for more.
    workspace
        The folder in which tools work. Without it, this one.
    nats
        The address of a NATS broker that carries letters to other stores, as nats://broker:4222; say it again for the
        others of its cluster. Without it, mail stays in this store.
    nats_replicas
        On how many brokers of a cluster a letter is. Without it, one.
    nats_monitor
        Where a broker says how safe what it has is, as http://broker:8222.
    nats_user
        The user to connect to NATS as.
    nats_password
        The password of that user. Others on this machine can read a command line: use the variable, or an nkey.
    nats_token
        A token for NATS in place of a user. Use the variable rather than the command line.
    nats_credentials
        A credentials file of a NATS user (.creds).
    nats_nkey
        A file with the seed (SU…) of a NATS user's nkey.
    nats_ca
        A file with the certificates that the certificate of NATS is checked with. Without it, those of the system.
        With it, or with nats-cert or nats-tls-first, NATS is not used without TLS.
    nats_cert
        A file with the certificate of this server, if NATS asks for one.
    nats_key
        A file with the key of that certificate.
    nats_tls_first
        Begin with TLS before NATS says anything, as a NATS server with handshake_first demands.
    nats_sign_only
        Sign letters on NATS, and do not encrypt them. Without it, they are encrypted if DRAGOMAN_MAIL_KEYS is set.
    allow_origin
        The address of another server whose pages may ask from a browser, as https://app.example.org; say it again for
        more.
    require_keys
        Let nobody in without a key, also from this machine.
    keys_file
        The file of the pepper that keys are hashed with. Without it, one beside the store.
    grace_s
        How many seconds running turns may take after the server was told to stop. Without it, 30.
    read_timeout_s
        A request that does not go on for so many seconds is closed. Without it, 30.
    keep_alive_s
        A connection on which nothing is asked for so many seconds is closed. Without it, 15.
    max_pending_runs
        How many runs of one user may be pending at once. Without it, 100.
    keep_run_events_days
        For how many days behind its end a client can come back to what a run has told. Without it, 7.
    log_level
        How much is logged: debug, info, warning or error. Without it, info.
    """
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("starlette") is None:
        raise InputError("the server is not installed", remedy="pip install 'dragoman[server]'")
    arguments = {name: value for name, value in locals().items() if name != "store" and value not in (None, ())}
    options = config_from(arguments, store, keys.load())
    from dragoman.server.supervisor import serve as serve_until_stopped  # noqa: PLC0415

    serve_until_stopped(options, _print_address)


def config_from(arguments: dict[str, Any], store: str | None, settings: keys.Settings) -> ServerConfig:
    """The options that hold: what was given, over what the file says."""
    values = {**settings.serve, **arguments}
    try:
        return msgspec.convert({**values, "store": resolve_store_url(store or values.get("store"))}, ServerConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(
            f"{error}",
            where=f"serve in {settings.file}" if settings.serve else "the options of serve",
            remedy="Correct it",
            code="invalid_config",
        ) from None


def _print_address(address: str, public_address: str | None) -> None:
    more = "" if public_address is None else f"For other users of this machine: {public_address}\n"
    sys.stdout.write(f"Dragoman is at {address}\n{more}Ctrl-C ends it.\n")
    sys.stdout.flush()
