"""``dragoman completion``: print or install the completion script of a shell."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from dragoman.cli.terminal import console


def completion(
    shell: Literal["bash", "zsh", "fish"],
    /,
    *,
    install: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> None:
    """Print the completion script of a shell, or install it.

    Parameters
    ----------
    shell
        The shell: bash, zsh or fish.
    install
        Write the script to a file in your home folder, and a line that loads it to the start-up file of the shell.
    """
    from dragoman.cli.parser import app  # noqa: PLC0415  which names this module

    if not install:
        console().out(app.generate_completion(shell=shell), end="", highlight=False)
        return
    file = app.install_completion(shell=shell)
    console().print(f"The completion script is in {file}. Start a new shell to use it.", soft_wrap=True)
