"""The tool ``run_command``, which runs a command in the workspace.

A command runs in its own process group, without input, and without the secrets of this process's environment. Its
output is bounded: the start and the end are kept. When it ends, times out or is cancelled, the whole group is killed; a
process that leaves the group survives. This is not a sandbox: a command can do what the user can do, so it requires
approval.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import shlex
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from dragoman.errors import ToolFailedError
from dragoman.exchange import SideEffects
from dragoman.redaction import redact
from dragoman.tools.process_output import ProcessOutput
from dragoman.tools.tool import Preview, ToolContext, ToolOutput, tool
from dragoman.tools.workspace import failure_from

_HEAD: Final = 16_000  # bytes kept from the start of the output
_TAIL: Final = 16_000  # and from its end
_MAX_COMMAND_S: Final = 590  # less than the time-out of the tool
_TERMINATE_S: Final = 1.0  # between SIGTERM and SIGKILL

_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|PAT|DSN|PEPPER|SALT"
    r"|JWT|BEARER|WEBHOOK|SIGNATURE|PRIVATE|CONNECTION_STRING|NETRC|KUBECONFIG)S?(?:_|$)"
    r"|PASSWORD|PASSWD|PASSPHRASE|PASSFILE|SECRET|CREDENTIAL|APIKEY|ACCESSKEY|TOKEN(?!I)"  # also in one word
    r"|_PWD$"
)
_OWN_PREFIX: Final = "DRAGOMAN_"  # settings of Dragoman are not passed to commands
_URL_WITH_USER: Final = re.compile(r"://[^/@\s]+@")  # a name alone may be a token
_OPAQUE: Final = re.compile(r"[0-9A-Za-z+=_-]{20,}")
_RANDOM_BITS: Final = 3.0  # entropy per character; random hexadecimal digits have almost 4
_MIN_SECRET_LENGTH: Final = 8  # characters; shorter secrets are not searched for in other texts


def environment_without_secrets(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that a command receives, and the values of the others.

    A variable is a secret by its name, by its value, or because its value contains another secret.
    """
    secret_variables = {name: value for name, value in environment.items() if _is_secret(name, value)}
    values = {
        value
        for value in secret_variables.values()
        if len(value) >= _MIN_SECRET_LENGTH and not value.startswith(("/", "~"))
    }
    secrets = tuple(sorted(values, key=len, reverse=True))  # without paths of files
    allowed = {
        name: value
        for name, value in environment.items()
        if name not in secret_variables
        and not name.upper().startswith(_OWN_PREFIX)
        and not any(secret in value for secret in secrets)
    }
    return allowed, secrets


def _is_secret(name: str, value: str) -> bool:
    if _SECRET_NAME.search(name.upper()) or _URL_WITH_USER.search(value) or redact(value) != value:
        return True
    pieces = (
        re.split(r"[/?&]", value) if "://" in value else [value]
    )  # a path may contain a hash without being a secret
    return any(_OPAQUE.fullmatch(piece) and _is_random(piece) for piece in pieces)


def _is_random(text: str) -> bool:
    """Whether a text mixes letters and digits randomly."""
    if not (any(map(str.isdigit, text)) and any(map(str.isalpha, text))):
        return False
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares) >= _RANDOM_BITS


def _preview_command(input: dict[str, Any], _context: ToolContext) -> Preview:  # noqa: A002
    _, secrets = environment_without_secrets(os.environ)
    return Preview(
        command_summary=_remove_secrets(secrets, _command_line(input.get("command", ""), input.get("argv", [])))
    )


def _command_line(command: str, argv: list[str]) -> str:
    return command or shlex.join(argv)


@tool(
    side_effects=SideEffects.EXECUTE, requires_workspace=True, preview=_preview_command, timeout_s=_MAX_COMMAND_S + 10
)
async def run_command(
    context: ToolContext,
    command: Annotated[str, "A command for the shell. Set this or argv."] = "",
    argv: Annotated[list[str], "A program and its arguments, run without a shell."] = [],  # noqa: B006
    path: Annotated[str, "The folder to run it in, relative to the workspace."] = ".",
    timeout_s: Annotated[int, msgspec.Meta(ge=1, le=_MAX_COMMAND_S)] = 120,
) -> ToolOutput:
    """Run a command in the workspace. Returns its exit code and its output."""
    if bool(command) == bool(argv):
        raise ToolFailedError("Set either command or argv", error_class="validation_error")
    if any("\0" in argument for argument in (command, *argv)):
        raise ToolFailedError("A command cannot contain a NUL", error_class="validation_error")
    environment, secrets = environment_without_secrets(os.environ)
    line = _remove_secrets(secrets, _command_line(command, argv))
    try:
        with context.files.open_folder(path):
            pass
        folder = context.files.root.joinpath(*context.files.parts_of(path))
        code, output = await _run(argv or ["/bin/sh", "-c", command], folder, environment, timeout_s)
    except OSError as error:
        raise failure_from(error, argv[0] if argv else path) from None
    text = _remove_secrets(secrets, output)
    status = f"exit code {code}" if code is not None else f"stopped after {timeout_s} s"
    content = f"[{status}]\n{text}" if text else f"[{status}]"
    return ToolOutput(content=content, is_error=code != 0, command_executed=line)


async def _run(argv: list[str], folder: Path, environment: dict[str, str], timeout_s: float) -> tuple[int | None, str]:
    """The exit code, or none after a time-out, and the output. The whole process group has ended."""
    read_end, write_end = os.pipe()
    output = ProcessOutput(_HEAD, _TAIL)
    async with output.read_pipe(read_end):
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=folder,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
            code = process.returncode
        except TimeoutError:
            code = None
        finally:
            await _end_group(process)
        await output.drain()
    return code, output.text()


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM, then SIGKILL, to the group, whose id is the pid of its first process."""
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _TERMINATE_S)
    _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _remove_secrets(secrets: tuple[str, ...], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "[redacted]")
    return text
