"""``dragoman serve``: serve the web page, the chat API, the gateway and mail.

Each option is read from the command line, its environment variable, or ``[serve]`` in the configuration file, in this
order.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter, validators

from dragoman import settings as keys
from dragoman.cli.local import prepare_weights
from dragoman.cli.options import StoreOption, resolve_store_url
from dragoman.errors import InputError, SettingsError
from dragoman.server.config import ServerConfig

_Port = Annotated[int | None, Parameter(env_var="DRAGOMAN_SERVE_PORT", validator=validators.Number(gte=0, lte=65535))]
_Count = Annotated[int | None, Parameter(env_var="DRAGOMAN_SERVE_WORKERS", validator=validators.Number(gte=1, lte=256))]
_Tools = Annotated[
    tuple[str, ...],
    Parameter(
        env_var="DRAGOMAN_SERVE_TOOL",
        show_default=False,
        help="A built-in tool that models may use: read_file, list_files, search_files, write_file, run_command,"
        " ask_user or send_letter; repeatable. Tools with side effects wait for approval.",
    ),
]
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
    tool: _Tools = (),
    mcp: Annotated[tuple[str, ...], Parameter(env_var="DRAGOMAN_SERVE_MCP", show_default=False)] = (),
    workspace: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_WORKSPACE")] = None,
    delegate: Annotated[bool | None, Parameter(env_var="DRAGOMAN_SERVE_DELEGATE", negative=())] = None,
    summarize: Annotated[bool | None, Parameter(env_var="DRAGOMAN_SERVE_SUMMARIZE", negative=())] = None,
    policy: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_POLICY")] = None,
    mail_agent: Annotated[tuple[str, ...], Parameter(env_var="DRAGOMAN_SERVE_MAIL_AGENT", show_default=False)] = (),
    mail_agent_tools: Annotated[bool | None, Parameter(env_var="DRAGOMAN_SERVE_MAIL_AGENT_TOOLS", negative=())] = None,
    nats: Annotated[tuple[str, ...], Parameter(env_var="DRAGOMAN_SERVE_NATS", show_default=False)] = (),
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
    record: Annotated[str | None, Parameter(env_var="DRAGOMAN_SERVE_RECORD")] = None,
    allow_origin: Annotated[tuple[str, ...], Parameter(env_var="DRAGOMAN_SERVE_ALLOW_ORIGIN", show_default=False)] = (),
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
    """Serve the web page, the chat API, the gateway and mail.

    Parameters
    ----------
    host
        The address to listen on. Default: 127.0.0.1, for this machine only. Other addresses require API keys.
    port
        The port to listen on; 0 for any free port. Default: 8000, or the next free port.
    workers
        The number of processes. Default: 1.
    attachments
        file:///folder, s3://bucket/prefix or supabase://host/bucket. Default: a folder beside the SQLite file.
    base_url
        The public URL of the server behind a proxy. Signed URLs start with it.
    model
        The default model: an id or an alias. Default: that of the configuration file.
    system
        The system prompt. Default: none.
    mcp
        An MCP server of the configuration file whose tools models may use; repeatable.
    workspace
        The working folder of the tools. Default: the current folder.
    delegate
        Let models delegate tasks to models of the tiers in the routing policy.
    summarize
        Summarize the oldest turns of a long conversation instead of omitting them.
    policy
        A routing policy file that replaces the policies of the workspaces.
    mail_agent
        An agent whose letters the server answers with runs, as NAME, TEAM/NAME or NAME=MODEL; repeatable.
    mail_agent_tools
        Let runs of letters use the tools of the server. Calls that need approval ask HUMAN.
    nats
        A NATS broker for letters to other stores, such as nats://broker:4222; repeatable. Default: no broker.
    nats_replicas
        The number of brokers that store a letter. Default: 1.
    nats_monitor
        The monitoring URL of a broker, such as http://broker:8222, to check its durability settings.
    nats_user
        The NATS user.
    nats_password
        The password of the NATS user. Other users can read command lines: prefer the environment variable.
    nats_token
        A NATS token instead of a user. Prefer the environment variable.
    nats_credentials
        A credentials file of a NATS user (.creds).
    nats_nkey
        A file with the seed (SU…) of the nkey of a NATS user.
    nats_ca
        A file with the CA certificates for NATS; makes TLS required. Default: the certificates of the system.
    nats_cert
        A file with the client certificate for NATS; makes TLS required.
    nats_key
        A file with the key of the client certificate.
    nats_tls_first
        Start TLS before the NATS handshake, for NATS servers with handshake_first.
    nats_sign_only
        Sign letters on NATS, but do not encrypt them. Default: encrypted if DRAGOMAN_MAIL_KEYS is set.
    record
        Whether calls of the gateway are stored before their response ends: durable or off. Default: durable.
    allow_origin
        An origin whose pages may call the API from a browser, such as https://app.example.org; repeatable.
    require_keys
        Require an API key from every client, also on this machine.
    keys_file
        The file with the pepper, the secret in the hashes of keys. Default: a file beside the store.
    grace_s
        The seconds that running turns may continue after a stop signal. Default: 30.
    read_timeout_s
        Close a request that sends no data for this many seconds. Default: 30.
    keep_alive_s
        Close an idle connection after this many seconds. Default: 15.
    max_pending_runs
        The maximum number of pending runs per user. Default: 100.
    keep_run_events_days
        The number of days that a client can replay the events of a finished run. Default: 7.
    log_level
        The log level: debug, info, warning or error. Default: info.
    """
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("starlette") is None:
        raise InputError("the server is not installed", remedy="Run pip install 'dragoman[server]'")
    arguments = {name: value for name, value in locals().items() if name != "store" and value not in (None, ())}
    settings = keys.load()
    options = config_from(arguments, store, settings)
    if options.model is not None:
        from dragoman.turn import make_registry  # noqa: PLC0415

        make_registry(settings).get(options.model)  # raises for an unknown name
    _prepare_weights(settings, options.model)
    from dragoman.server.supervisor import serve as serve_until_stopped  # noqa: PLC0415

    serve_until_stopped(options, _print_address)


def _prepare_weights(settings: keys.Settings, model: str | None) -> None:
    """Fetch the weights of the embedded model if it is the default model. The server also starts without them."""
    try:
        prepare_weights(settings, model)
    except SettingsError as error:
        sys.stderr.write(f"dragoman: {error} [{error.code}]\n")


def config_from(arguments: dict[str, Any], store: str | None, settings: keys.Settings) -> ServerConfig:
    """Merge the arguments over the configuration file."""
    values = {**settings.serve, **arguments}
    try:
        return msgspec.convert({**values, "store": resolve_store_url(store or values.get("store"))}, ServerConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(
            f"{error}",
            where=f"serve in {settings.file}" if settings.serve else "options of serve",
            remedy="Correct the value",
            code="invalid_config",
        ) from None


def _print_address(address: str, public_address: str | None) -> None:
    more = "" if public_address is None else f"URL for other users of this machine: {public_address}\n"
    sys.stdout.write(f"Dragoman runs at {address}\n{more}Press Ctrl-C to stop.\n")
    sys.stdout.flush()
