"""Check that names follow the naming rules: ``python -m scripts.check_names [--report] [FOLDER …]``.

Modules are nouns. Classes are nouns. Functions are imperative verbs, predicates (``is_``, ``has_``), conversions
(``to_x``, ``x_from_y``) or the noun of the value that they return. The script lists

    module    a word is a gerund, a participle or an adjective
    class     the last word is a gerund or a participle (``StoredLetter`` is fine, ``Stored`` is not)
    function  the name begins with a gerund or a participle, ends with one without an imperative verb in front of it
              (``question_stored``), or begins with a verb that the style guide rejects (tell, say, hear)
    test      a word of a function that begins with ``test_`` is a form of a rejected verb (``told``)

Exit code 1 if a name breaks a rule. With ``--report``, counts per package are printed as well, and the exit code is 0.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
# Folders of tests whose names follow the rules.
TEST_FOLDERS: Final = (
    *("agent_framework", "agents", "attachments", "bus", "client", "dialects", "entries", "fake_providers", "fuzz"),
    *("gateway", "install", "letters", "local", "mail", "routing", "server", "servers", "store"),
    *("tools", "transcript_defects", "transcripts", "tui", "turn", "web"),
)
FOLDERS: Final = ("src/dragoman", "scripts", "benchmarks", "tests/*.py", *(f"tests/{name}" for name in TEST_FOLDERS))


def words_of(text: str) -> frozenset[str]:
    """Return the set of words of a text."""
    return frozenset(text.split())


# Established nouns, and verbs whose base form ends in -ed or -ing.
WORDS: Final = words_of("""
    bed bleed breed bring building ceiling deed docstring docstrings embed embedding embeddings encoding evening
    exceed feed finding findings framing grounding heading hundred indeed keyring king led logging mapping mappings
    meaning morning naming need needs padding ping pricing proceed rating ratings reasoning red ring routing sampling
    seed seeds setting settings shed sibling siblings signing speed spelling spring streaming string strings succeed
    thing things thinking thought thoughts timing warning warnings wing
    """)
# Adjectives that name a group of things: ``allowed_blocks``, ``expired``, ``pending_calls``.
ADJECTIVES: Final = words_of(
    "allowed cached changed covered existing expired missing nested pending redacted remaining repeated required signed"
    " supported unfinished unsupported unused unvalidated"
)
# Participles that may qualify the noun behind them: ``linked_session``, ``stored_letter``; never alone.
QUALIFIERS: Final = words_of("blocking created imported keyed known linked published reported requested sealed stored")
IRREGULAR: Final = words_of("""
    became been began begun bent bought bound broke broken brought built came caught chosen clung done drawn drew
    driven eaten fallen fed felt forgotten fought found gave given gone got grown had heard held hidden hung kept
    knew known laid lain left lent lost made meant met paid ran risen said sat saw seen sent shaken shown slept
    slid sold sought spent spoken stood stuck sung sunk swept swum taken taught thought thrown told took understood
    went woken won worn woven written
    """)
REJECTED_VERBS: Final = words_of("hear hears say says tell tells")
REJECTED_FORMS: Final = REJECTED_VERBS | words_of("heard hearing said saying telling told")
# First words that make a participle behind them an object or a state: ``mark_recognized``, ``raise_if_refused``.
VERBS: Final = words_of("""
    accept acquire add append apply assert await build cache call cancel change check choose clean clear close
    collect compare complete compute convert copy count create decode delete describe detect drop emit encode end
    ensure erase expect export extract fail fetch fill filter find finish fold format get group handle hash hide
    import index insert is join keep list load log make map mark match measure merge move normalize open parse
    pause print prune publish put raise read receive record refresh register reject release remove rename render
    repair replace report require resend reset resolve restore retry return revoke rotate run save scan schedule
    search send serve set settle show skip sort split start stay stop store stream strip submit summarize swap sync
    to truncate try unwrap update validate verify wait warn with write yield
    """)
PREDICATES: Final = words_of("are can could did does has have is may must needs should was were will")
MODULE_ADJECTIVES: Final = words_of(
    "big broken good large late lazy new old own plain quick recent sensitive sticky strict unbroken"
)

# Names that a protocol, a library or a specification fixes, with the reason.
FIXED: Final = {
    "connection_lost": "asyncio.Protocol",
    "connection_made": "asyncio.Protocol",
    "data_received": "asyncio.Protocol",
    "eof_received": "asyncio.Protocol",
    "resume_writing": "asyncio.Protocol",
    "files_entered": "counts the files that a request enters",
    "ToolResultStored": "turn event",
    "on_broken_pipe": "rich.console.Console",
    "on_button_pressed": "Textual event handler",
    "on_option_list_option_selected": "Textual event handler",
    "Written": "dialect interface",
    "test_text_says_something": "has the name of its rule",
}
FIXED_PATHS: Final = {
    "src/dragoman/agent_framework": "interface of the trace store specification",
    "src/dragoman/bus/catalogue.py": "payload classes are named after their event types",
    "src/dragoman/bus/event_types": "payload classes are named after their event types",
    "src/dragoman/store/migrations": "released migrations keep their names",
    "src/dragoman/store/engines/migrations": "released migrations keep their names",
}


class Finding(NamedTuple):
    """One name that breaks a rule."""

    path: str
    line: int
    kind: str
    name: str
    word: str

    @property
    def package(self) -> str:
        """The package of the file, relative to ``src/dragoman``."""
        parts = Path(self.path).parts
        return (
            "/".join(parts[:3])
            if parts[0] == "src" and len(parts) > 3
            else "/".join(parts[:2] if parts[0] == "src" else parts[:1])
        )


def split_words(name: str) -> list[str]:
    """Return the lower-case words of a name in snake case or camel case."""
    return [word.lower() for part in name.split("_") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", part)]


def is_participle(word: str) -> bool:
    """Return whether a word is a gerund or a participle, and not an established noun or adjective."""
    if word in WORDS or word in ADJECTIVES:
        return False
    return word in IRREGULAR or (len(word) > 3 and word.endswith(("ing", "ed")))


def module_problem(name: str) -> str | None:
    """Return the word of a module name that breaks the rule."""
    words = split_words(name)
    rest = words[1:] if len(words) > 1 and words[0] in QUALIFIERS else words
    return next((word for word in rest if is_participle(word) or word in MODULE_ADJECTIVES), None)


def class_problem(name: str) -> str | None:
    """Return the last word of a class name if it is a gerund or a participle."""
    words = split_words(name)
    return words[-1] if words and is_participle(words[-1]) else None


def function_problem(name: str) -> str | None:
    """Return the word of a function name that breaks the rule."""
    words = split_words(name)
    if not words or name.startswith("__") or words[0] in PREDICATES:
        return None
    is_qualifier = words[0] in QUALIFIERS and len(words) > 1
    if (is_participle(words[0]) and not is_qualifier) or words[0] in REJECTED_VERBS:
        return words[0]
    return words[-1] if is_participle(words[-1]) and words[0] not in VERBS else None


def verb_problem(name: str) -> str | None:
    """Return the form of a rejected verb in the name of a test function."""
    return next((word for word in split_words(name) if word in REJECTED_FORMS), None)


def find_in_file(path: Path) -> Iterator[Finding]:
    """Find the names of one module that break a rule."""
    place = path.relative_to(ROOT).as_posix()
    if any(place.startswith(prefix) for prefix in FIXED_PATHS):
        return
    stem = path.parent.name if path.stem == "__init__" else path.stem
    if stem not in FIXED and (word := module_problem(stem)) is not None:
        yield Finding(place, 1, "module", stem, word)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.ClassDef(name=name) if name not in FIXED and (word := class_problem(name)):
                yield Finding(place, node.lineno, "class", name, word)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                kind, find_problem = (
                    ("test", verb_problem) if name.startswith("test_") else ("function", function_problem)
                )
                if name not in FIXED and (word := find_problem(name)):
                    yield Finding(place, node.lineno, kind, name, word)


def list_files(folder: str) -> list[Path]:
    """List the modules below a folder, or the files that match a pattern with ``*``."""
    return sorted(ROOT.glob(folder) if "*" in folder else (ROOT / folder).rglob("*.py"))


def find_all(folders: tuple[str, ...] = FOLDERS) -> list[Finding]:
    """Find the names of all modules below some folders that break a rule."""
    files = (file for folder in folders for file in list_files(folder))
    return sorted(finding for file in files for finding in find_in_file(file))


def main(arguments: list[str]) -> int:
    """Print every finding; with ``--report``, also the number per package."""
    is_report = "--report" in arguments
    folders = tuple(argument for argument in arguments if not argument.startswith("--"))
    findings = find_all(folders or FOLDERS)
    for finding in findings:
        print(f"{finding.path}:{finding.line}: {finding.kind} {finding.name} ({finding.word})")
    if is_report:
        for package, count in sorted(Counter(finding.package for finding in findings).items()):
            print(f"{count:5}  {package}")
    if findings:
        print(f"{len(findings)} names break the naming rules that the docstring of scripts/check_names.py states.")
    return 0 if is_report or not findings else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
