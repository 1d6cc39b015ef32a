"""The sources of the page: their types, their own tests, and what they are built from."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from scripts.build_page import ROOT, SOURCES, build, install, node


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)


def test_the_types_hold() -> None:
    install()
    done = run(node(), str(SOURCES / "node_modules" / "typescript" / "bin" / "tsc"), "--noEmit", "-p", ".")
    assert (done.returncode, done.stdout) == (0, "")


def test_its_own_tests_pass() -> None:
    install()
    files = sorted(str(path) for path in (SOURCES / "test").glob("*.test.ts"))
    done = run(node(), "--test", "--test-isolation=none", "--test-reporter=dot", *files)
    assert files
    assert done.returncode == 0, done.stdout + done.stderr


def test_advice_is_given_for_codes_that_there_are() -> None:
    known = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("errors.md", "server.md", "runs.md"))
    codes = re.findall(r"^  (\w+): ", (SOURCES / "src" / "api" / "error-messages.ts").read_text("utf-8"), re.MULTILINE)
    assert len(codes) > 30
    assert [code for code in codes if f"`{code}`" not in known] == []


def test_the_lock_names_no_host_and_has_a_hash_for_everything() -> None:
    lock = json.loads((SOURCES / "package-lock.json").read_text("utf-8"))
    packages = {name: row for name, row in lock["packages"].items() if name}
    assert len(packages) > 10
    assert [name for name, row in packages.items() if "integrity" not in row or "resolved" in row] == []


def test_whoever_builds_it_twice_gets_the_same(tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in build().iterdir()}
    done = run(node(), str(SOURCES / "build.mjs"), str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == first


def test_the_page_loads_in_a_moment() -> None:
    folder = build()
    html = (folder / "index.html").read_text("utf-8")
    parts = set(re.findall(r'(?:src|href)="static/([^"]+)"', html))
    assert sum((folder / name).stat().st_size for name in parts if name.endswith(".js")) < 250_000
    assert sum((folder / name).stat().st_size for name in parts if name.endswith(".css")) < 50_000
    assert any(path.suffix == ".js" and path.name not in parts for path in folder.iterdir())  # other pages come later
