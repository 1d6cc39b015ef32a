"""Tests of the main paths of the page in Firefox, driven over WebDriver BiDi."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.server.runs.conftest import install_packages, run_node
from tests.web.site import Site

FOLDER = Path(__file__).parent / "firefox"


@pytest.mark.slow
async def test_main_paths_work_in_firefox(site: Site) -> None:
    firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    if firefox is None:
        pytest.skip("Firefox is not installed: install the package firefox-esr")
    site.fakes["anthropic"].reply("A lamp in a case.")
    status, output = await run_node(install_packages("firefox", FOLDER), FOLDER / "drive.mjs", firefox, site.base_url)
    assert (status, output.strip()) == (0, "done"), output
