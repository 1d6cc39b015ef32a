"""The command line: one file per command, each imported only when it is called.

A command reads what the user names, calls the rooms below, and prints. The one rule: what goes wrong on purpose ends
in one line that says where, what and what to do, and in exit code 2; a traceback is a defect.
"""

from __future__ import annotations

import sys

from cyclopts import App

import dragoman
from dragoman.errors import DragomanError

app = App(
    name="dragoman",
    help="One canonical message format for agents, and everything that makes it useful.",
    version=dragoman.__version__,
    version_flags=["--version", "-V"],
    help_format="plaintext",
)
app.command("dragoman.cli.tour:tour", name="tour", help="Show the format at work on an example conversation.")
app.command("dragoman.cli.check:check_file", name="check", help="Check a file of messages, and repair it if asked.")
app.command("dragoman.cli.prove:prove", name="prove", help="Show whether recorded traffic comes back as it was.")
app.command("dragoman.cli.price:price", name="price", help="Print the receipt for a call of a model.")


def main() -> None:
    """Run the command that the arguments name."""
    try:
        sys.exit(app())
    except DragomanError as error:
        sys.stderr.write(f"dragoman: {error}\n")
        sys.exit(2)
