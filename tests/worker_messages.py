"""Fewer messages from parallel workers. A worker sends six messages per test, of which one contains the result."""

from __future__ import annotations

from typing import Any

import pytest


def shorten(config: pytest.Config) -> None:
    """Do not send the starts of tests, nor set-ups and tear-downs that passed, unless an option lists them."""
    options = config.option
    if options.verbose > 0 or options.durations is not None or options.xmlpath is not None:
        return
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "sendevent"):  # the part of pytest-xdist that sends
            plugin.sendevent = _make_result_sender(plugin.sendevent)


def _make_result_sender(send: Any) -> Any:
    def send_result(name: str, **values: Any) -> None:
        if name not in {"logstart", "logfinish"} and not (name == "testreport" and _is_plain(values["data"])):
            send(name, **values)

    return send_result


def _is_plain(report: dict[str, Any]) -> bool:
    """Return whether the report of a set-up or tear-down contains nothing that the end of a run prints."""
    return report["when"] != "call" and report["outcome"] == "passed" and not report["sections"]
