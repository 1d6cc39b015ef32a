"""The gateways that are compared: how each is started, and where its routes are.

A route is a pair of APIs, of the caller and of the provider. A gateway that is not installed is left out, with the
reason. LiteLLM, TensorZero and Portkey are installed from the pins in ``requirements/bench``; Portkey needs Node.js and
npm on PATH. nginx is the one on PATH, else that of the Debian package, which is unpacked and not installed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.arena import ROOT, ensure_python
from benchmarks.gateways.bodies import ANTHROPIC, CLAUDE, GPT, OPENAI, PATHS

Route = tuple[str, str]
ROUTES: tuple[Route, ...] = ((OPENAI, OPENAI), (ANTHROPIC, OPENAI), (OPENAI, ANTHROPIC), (ANTHROPIC, ANTHROPIC))
_START_S = 180.0
_ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
_NGINX = """daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log error;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream provider {{ server 127.0.0.1:{provider}; keepalive 256; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://provider; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_buffering off; }} }} }}
"""
_DRAGOMAN = """[providers.o]
dialect = "openai_chat"
base_url = "http://127.0.0.1:{provider}/v1"
api_key = "sk-bench"
[models."o:{gpt}"]
aliases = ["{gpt}"]
[providers.a]
dialect = "anthropic"
base_url = "http://127.0.0.1:{provider}"
api_key = "sk-bench"
[models."a:{claude}"]
aliases = ["{claude}"]
"""
_LITELLM = """model_list:
  - model_name: {gpt}
    litellm_params: {{model: openai/{gpt}, api_base: "http://127.0.0.1:{provider}/v1", api_key: sk-bench}}
  - model_name: {claude}
    litellm_params: {{model: anthropic/{claude}, api_base: "http://127.0.0.1:{provider}", api_key: sk-bench}}
litellm_settings: {{set_verbose: false, num_retries: 0, callbacks: [], drop_params: true,
  use_chat_completions_url_for_anthropic_messages: true}}
general_settings: {{disable_spend_logs: true, disable_error_logs: true}}
"""
_TENSORZERO = """[gateway]
observability.enabled = false
[models.o]
routing = ["p"]
[models.o.providers.p]
type = "openai"
model_name = "{gpt}"
api_base = "http://127.0.0.1:{provider}/v1/"
api_key_location = "none"
[models.a]
routing = ["p"]
[models.a.providers.p]
type = "anthropic"
model_name = "{claude}"
api_base = "http://127.0.0.1:{provider}/v1/messages"
api_key_location = "env::ANTHROPIC_API_KEY"
"""


@dataclass(frozen=True)
class Place:
    """Where a gateway is started."""

    provider: int  # the port of the fake provider
    port: int
    folder: Path

    def write(self, name: str, template: str) -> str:
        """Write a configuration file and return its path."""
        file = self.folder / name
        text = template.format(folder=self.folder, provider=self.provider, port=self.port, gpt=GPT, claude=CLAUDE)
        file.write_text(text)
        file.chmod(0o600)
        return str(file)


@dataclass
class Gateway:
    """A gateway. Without a command it is the provider itself."""

    name: str
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    routes: tuple[Route, ...] = ROUTES
    paths: dict[str, str] = field(default_factory=lambda: dict(PATHS))
    models: dict[str, str] = field(default_factory=lambda: {OPENAI: GPT, ANTHROPIC: CLAUDE})
    headers: dict[str, str] = field(default_factory=dict)
    headers_of: Callable[[str], dict[str, str]] | None = None  # more headers for a provider's API
    address_file: Path | None = None  # in which the gateway writes its address
    whole_only: bool = False
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self, core: int | None) -> None:
        """Start the gateway and wait until it answers."""
        if not self.command:
            return
        pin = ["taskset", "-c", str(core)] if core is not None else []
        environment = {**_ENVIRONMENT, **self.environment}
        self.process = subprocess.Popen(
            [*pin, *self.command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("it did not start")
            time.sleep(0.1)

    def _answers(self) -> bool:
        if self.address_file is not None:
            if not self.address_file.exists() or not (address := self.address_file.read_text()):
                return False
            self.port = int(address.rsplit(":", 1)[1].partition("/")[0])
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=2)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the gateway."""
        if self.process is not None:
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """End the gateway."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.process.wait(10)


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def make_gateways(names: list[str], provider: int, console: Console) -> list[Gateway]:
    """Return the gateways of these names that can be started."""
    gateways: list[Gateway] = []
    for name in names:
        folder = Path(tempfile.mkdtemp(prefix="gateway-bench-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        place = Place(provider, free_port(), folder)
        try:
            gateway = MAKERS[name](place, console)
        except (OSError, subprocess.CalledProcessError) as error:
            console.print(f"{name} is left out: {error}", markup=False)
            continue
        gateway.port = gateway.port or place.port
        gateways.append(gateway)
    return gateways


def _direct(place: Place, console: Console) -> Gateway:  # noqa: ARG001
    return Gateway("direct", routes=((OPENAI, OPENAI), (ANTHROPIC, ANTHROPIC)), port=place.provider)


def _nginx(place: Place, console: Console) -> Gateway:
    program = shutil.which("nginx") or _unpack_nginx(console)
    command = [program, "-c", place.write("nginx.conf", _NGINX), "-p", str(place.folder)]
    return Gateway("nginx", command, routes=((OPENAI, OPENAI), (ANTHROPIC, ANTHROPIC)))


def _unpack_nginx(console: Console) -> str:
    """Return the program of the Debian package, and fetch it if necessary."""
    folder = ROOT / ".cache" / "bench" / "nginx"
    program = folder / "usr" / "sbin" / "nginx"
    if not program.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise FileNotFoundError("nginx is not on PATH, and there is no apt-get to fetch it")
        console.print(f"unpacking nginx into {folder.relative_to(ROOT)}")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "--quiet", "nginx"], cwd=folder, check=True, capture_output=True)
        for package in folder.glob("nginx_*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    return str(program)


def _bare(kind: str) -> Callable[[Place, Console], Gateway]:
    def make(place: Place, console: Console) -> Gateway:  # noqa: ARG001
        module = [sys.executable, "-m", "benchmarks.gateways.bare_proxy", kind]
        routes = ROUTES if kind == "translate" else ((OPENAI, OPENAI), (ANTHROPIC, ANTHROPIC))
        environment = {"PYTHONPATH": str(ROOT)}
        command = [*module, str(place.port), str(place.provider)]
        return Gateway(f"bare {kind}", command, environment, routes=routes, whole_only=True)

    return make


def _dragoman(record: str) -> Callable[[Place, Console], Gateway]:
    def make(place: Place, console: Console) -> Gateway:  # noqa: ARG001
        options = ["--port", str(place.port), "--store", str(place.folder / "chats.db"), "--log-level", "error"]
        environment = {"DRAGOMAN_CONFIG": place.write("config.toml", _DRAGOMAN), "HOME": str(place.folder)}
        command = [sys.executable, "-m", "dragoman", "serve", *options, "--record", record]
        return Gateway(f"dragoman, recording {record}", command, environment, headers={"authorization": "Bearer x"})

    return make


def _litellm(place: Place, console: Console) -> Gateway:
    python = Path(ensure_python("litellm-proxy", console))
    key = "sk-bench-0123456789abcdef0123456789abcdef"
    environment = {"LITELLM_MASTER_KEY": key, "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_ADMIN_UI": "True", "NO_DOCS": "True"}
    options = ["--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1", "--telemetry", "False"]
    command = [str(python.with_name("litellm")), "--config", place.write("config.yaml", _LITELLM), *options]
    return Gateway("LiteLLM", command, environment, headers={"authorization": f"Bearer {key}"})


def _tensorzero(place: Place, console: Console) -> Gateway:
    python = ensure_python("tensorzero", console)
    address = place.folder / "address"
    script = str(ROOT / "benchmarks" / "gateways" / "start_tensorzero.py")
    return Gateway(
        "TensorZero",
        [python, script, place.write("tensorzero.toml", _TENSORZERO), str(address)],
        {"ANTHROPIC_API_KEY": "sk-bench", "OPENAI_API_KEY": "sk-bench", "RUST_LOG": "error"},
        routes=((OPENAI, OPENAI), (OPENAI, ANTHROPIC)),
        paths={OPENAI: "/openai/v1/chat/completions"},
        models={OPENAI: "tensorzero::model_name::o", ANTHROPIC: "tensorzero::model_name::a"},
        address_file=address,
    )


def _portkey(place: Place, console: Console) -> Gateway:
    program = _install_portkey(console)
    address = f"http://127.0.0.1:{place.provider}/v1"

    def headers_of(api: str) -> dict[str, str]:
        return {"x-portkey-provider": api, "x-portkey-custom-host": address, "authorization": "Bearer sk-bench"}

    command = ["node", str(program), f"--port={place.port}", "--headless"]
    environment = {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1"}
    routes = ((OPENAI, OPENAI), (OPENAI, ANTHROPIC), (ANTHROPIC, ANTHROPIC))
    return Gateway("Portkey", command, environment, routes=routes, headers_of=headers_of)


def _install_portkey(console: Console) -> Path:
    """Return the program of the npm package, and install the package if necessary."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise FileNotFoundError("node and npm are not on PATH")
    folder, pins = ROOT / ".cache" / "bench" / "portkey", ROOT / "requirements" / "bench" / "portkey"
    stamp, lock = folder / ".installed", pins / "package-lock.json"
    if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
        console.print(f"installing portkey into {folder.relative_to(ROOT)}")
        shutil.copytree(pins, folder, dirs_exist_ok=True)
        options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev"]
        subprocess.run(["npm", "ci", *options, "--prefix", folder], check=True)
        stamp.touch()
    return folder / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"


MAKERS: dict[str, Callable[[Place, Console], Gateway]] = {
    "direct": _direct,
    "nginx": _nginx,
    "forward": _bare("forward"),
    "translate": _bare("translate"),
    "litellm": _litellm,
    "portkey": _portkey,
    "tensorzero": _tensorzero,
    "dragoman-off": _dragoman("off"),
    "dragoman-durable": _dragoman("durable"),
}
