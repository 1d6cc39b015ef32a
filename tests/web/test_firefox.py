"""The main paths of the page in Firefox, which is driven over WebDriver BiDi."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.server.runs.conftest import install_packages, run_node
from tests.web.site import Site

FOLDER = Path(__file__).parent / "firefox"


@pytest.mark.slow
async def test_the_main_paths_work_in_firefox(site: Site) -> None:
    firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    if firefox is None:
        pytest.skip("Firefox is not installed: install the package firefox-esr")
    site.fakes["anthropic"].say("A lamp in a case.")
    status, printed = await run_node(install_packages("firefox", FOLDER), FOLDER / "drive.mjs", firefox, site.base_url)
    assert (status, printed.strip()) == (0, "done"), printed
