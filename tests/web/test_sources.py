"""Tests of the sources of the page: types, unit tests, dependencies and build."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from scripts.build_page import ROOT, SOURCES, build, install, node


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)


def test_types_are_correct() -> None:
    install()
    completed = run(node(), str(SOURCES / "node_modules" / "typescript" / "bin" / "tsc"), "--noEmit", "-p", ".")
    assert (completed.returncode, completed.stdout) == (0, "")


def test_unit_tests_of_page_pass() -> None:
    install()
    files = sorted(str(path) for path in (SOURCES / "test").glob("*.test.ts"))
    completed = run(node(), "--test", "--test-isolation=none", "--test-reporter=dot", *files)
    assert files
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_error_advice_uses_documented_codes() -> None:
    known = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("errors.md", "server.md", "runs.md"))
    codes = re.findall(r"^  (\w+): ", (SOURCES / "src" / "api" / "error-messages.ts").read_text("utf-8"), re.MULTILINE)
    assert len(codes) > 30
    assert [code for code in codes if f"`{code}`" not in known] == []


def test_lock_file_names_no_host_and_has_every_hash() -> None:
    lock = json.loads((SOURCES / "package-lock.json").read_text("utf-8"))
    packages = {name: row for name, row in lock["packages"].items() if name}
    assert len(packages) > 10
    assert [name for name, row in packages.items() if "integrity" not in row or "resolved" in row] == []


def test_build_is_reproducible(tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in build().iterdir()}
    completed = run(node(), str(SOURCES / "build.mjs"), str(tmp_path / "again"))
    assert completed.returncode == 0, completed.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == first


def test_initial_page_size_is_bounded() -> None:
    folder = build()
    html = (folder / "index.html").read_text("utf-8")
    parts = set(re.findall(r'(?:src|href)="static/([^"]+)"', html))
    assert sum((folder / name).stat().st_size for name in parts if name.endswith(".js")) < 250_000
    assert sum((folder / name).stat().st_size for name in parts if name.endswith(".css")) < 50_000
    assert any(path.suffix == ".js" and path.name not in parts for path in folder.iterdir())  # other pages load later
