"""The file of the routing policy, read again when it has changed.

    source = PolicyFile.for_workspace(workspace, registry)
    source.read() -> PolicyStatus(policy, path, version, errors, …)     before each turn

The first existing file is used: ``.dragoman/routing.yaml`` or ``.metis/routing.yaml`` in the workspace, else
``routing.yaml`` in the user's configuration folder. Without a file the policy is empty. If a file has errors, the last
valid policy stays in effect. A file in a workspace may be untrusted. Invariant: reading it takes time linear in its
size, and it can choose only configured models.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dragoman.errors import PolicyError
from dragoman.routing import Policy, Registry, read_policy

WORKSPACE_PATHS: Final = (".dragoman/routing.yaml", ".metis/routing.yaml")
MAX_BYTES: Final = 256 * 1024

_Stamp = tuple[str, int, int, int]  # path, modification time, size, inode


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in effect and the state of its file."""

    policy: Policy
    path: str | None = None  # of the file, if there is one
    version: str = ""  # SHA-256 of the text of the policy; empty without a file
    errors: tuple[str, ...] = ()  # of the current file; the policy is then the last valid one, or empty
    is_new: bool = False  # first read of this state of the file: report its errors
    uses_last_good: bool = False

    def invalid_payload(self) -> dict[str, Any]:
        """The payload of ``routing.policy_invalid``."""
        return {
            "policy_path": self.path,
            "errors": list(self.errors),
            "using_last_known_good": self.uses_last_good,
        }


_NO_POLICY: Final = PolicyStatus(policy=Policy())


class PolicyFile:
    """A policy in the first existing file of a list."""

    def __init__(self, places: Iterable[Path | str], registry: Registry) -> None:
        self._places = tuple(str(place) for place in places)
        self._registry = registry
        self._stamp: _Stamp | None = None
        self._last: PolicyStatus = _NO_POLICY
        self._good: PolicyStatus | None = None

    @classmethod
    def for_workspace(
        cls, workspace: Path | str, registry: Registry, *, environment: Mapping[str, str] | None = None
    ) -> PolicyFile:
        """Return the policy file of a workspace."""
        return cls(policy_paths(workspace, os.environ if environment is None else environment), registry)

    def read(self) -> PolicyStatus:
        """Return the policy in effect. The file is read only if it has changed."""
        stamp = self._find()
        if stamp is None:
            self._stamp, self._good, self._last = None, None, _NO_POLICY
        elif stamp != self._stamp:
            self._last = self._read(stamp[0])
            self._stamp = stamp
            return self._last
        return msgspec.structs.replace(self._last, is_new=False) if self._last.is_new else self._last

    def _find(self) -> _Stamp | None:
        for place in self._places:
            try:
                status = os.stat(place)  # called before each turn; Path.stat is slower
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                return place, 0, 0, 0  # the file exists, and reading it raises the error
            return place, status.st_mtime_ns, status.st_size, status.st_ino
        return None

    def _read(self, path: str) -> PolicyStatus:
        try:
            text = _read_text(path)
            policy = read_policy(parse_yaml(text, path), self._registry, home=str(Path.home()), origin=path)
        except PolicyError as error:
            good = self._good if self._good is not None and self._good.path == path else None
            return PolicyStatus(
                policy=good.policy if good else Policy(),
                version=good.version if good else "",
                path=path,
                errors=error.problems,
                is_new=True,
                uses_last_good=good is not None,
            )
        version = hashlib.sha256(text).hexdigest()
        self._good = PolicyStatus(policy=policy, path=path, version=version, is_new=True)
        return self._good


def policy_paths(workspace: Path | str, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the possible paths of a policy, in order of precedence."""
    if sys.platform == "win32":
        folder = Path(environment.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        folder = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return (*(Path(workspace) / name for name in WORKSPACE_PATHS), folder / "dragoman" / "routing.yaml")


def policy_from_file(path: Path | str, registry: Registry) -> Policy:
    """Return the policy of one file. ``PolicyError`` if it is invalid or missing."""
    document = parse_yaml(_read_text(str(path)), str(path))
    return read_policy(document, registry, home=str(Path.home()), origin=str(path))


def _read_text(path: str) -> bytes:
    try:
        if not Path(path).is_file():  # reading a pipe would block
            raise PolicyError(("$: the file does not exist",), where=path)
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError((f"$: it cannot be read ({error.strerror})",), where=path) from None
    if len(text) > MAX_BYTES:
        raise PolicyError((f"$: it is larger than {MAX_BYTES} bytes",), where=path)
    return text


def parse_yaml(text: bytes, origin: str = "routing policy") -> Any:
    """Parse YAML. Duplicate keys and references raise ``PolicyError``."""
    import yaml  # noqa: PLC0415  loaded only for a policy file

    class Loader(yaml.SafeLoader):
        """YAML without references, so that the size of the result is bounded by the size of the text."""

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.MarkedYAMLError(problem="references (*) are not supported", problem_mark=mark)
            node: yaml.Node | None = super().compose_node(parent, index)
            return node

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in keys:
                    what = f"the key {key.value!r} occurs twice"
                    raise yaml.MarkedYAMLError(problem=what, problem_mark=key.start_mark)
                keys.add(str(key.value))
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "$"
        raise PolicyError((f"{place}: not valid YAML ({error.problem})",), where=origin) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise PolicyError((f"$: not valid YAML ({reason})",), where=origin) from None
