"""The command line: one file per command or family of commands, each imported only when it is called.

A command reads what the user names, calls the rooms below, and prints. The one rule: what goes wrong on purpose ends
in one line that says where, what and what to do, with its code, and in exit code 2; a traceback is a defect.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from cyclopts import App, CycloptsError, Group

import dragoman
from dragoman.errors import DragomanError

FORMAT, MODELS = Group("The format", sort_key=1), Group("Models", sort_key=2)
STORE = Group("The store", sort_key=3)
SERVER = Group("The server", sort_key=4)
MAIL = Group("Mail between agents", sort_key=5)

app = App(
    name="dragoman",
    help="One canonical message format for agents, and everything that makes it useful.",
    version=dragoman.__version__,
    version_flags=["--version", "-V"],
    help_format="plaintext",
    help_epilogue="dragoman COMMAND --help explains a command, with examples.",
)
app["--help"].group = app["--version"].group = Group("Options", sort_key=9)


def _command(
    name: str, target: str, help_text: str, *, group: Group | None, examples: str, codes: str = "", parent: App = app
) -> None:
    """Make a command known without importing it."""
    lines = [f"  {line.strip()}" for line in examples.strip().splitlines()]
    codes = codes or "0: it worked. 2: it could not be done."
    epilogue = "\n".join(["Examples:", *lines, "", f"Exit code {codes}"])
    parent.command(f"dragoman.cli.{target}", name=name, help=help_text, group=group, help_epilogue=epilogue)


# --- the format ------------------------------------------------------------------------------------------------------

_command(
    "tour",
    "tour:tour",
    "Show the format at work on an example conversation.",
    group=FORMAT,
    examples="dragoman tour",
)
_command(
    "check",
    "check:check_file",
    "Check a file of conversations, and repair it if asked.\n\n"
    "Any format that convert reads. Every breach is printed with its line, its place and its rule.",
    group=FORMAT,
    examples="""
        dragoman check history.jsonl
        dragoman check requests.jsonl --from anthropic
        dragoman check history.jsonl --repair-to repaired.jsonl
    """,
    codes="0: nothing is wrong. 1: something is. 2: the file cannot be read.",
)
_command(
    "repair",
    "check:repair_file",
    "Make conversations that break no rule, and say what was done.\n\n"
    "Words are never changed. Conversations in which nothing is wrong stay as they are, byte for byte.",
    group=FORMAT,
    examples="""
        dragoman repair history.jsonl
        dragoman repair history.jsonl repaired.jsonl
        dragoman repair requests.jsonl --in-place
    """,
    codes="0: nothing is wrong any more. 1: something is, and nothing was written. 2: it could not be done.",
)
_command(
    "convert",
    "convert:convert",
    "Write conversations in another format.\n\n"
    "From and to: canonical, envelopes, entries, the dialect of every provider, the messages of frameworks; to"
    " markdown and html as well. What the other format cannot say is counted, and never lost without a word.",
    group=FORMAT,
    examples="""
        dragoman convert requests.jsonl messages.jsonl
        dragoman convert requests.jsonl claude.jsonl --from openai_chat --to anthropic --losses lost.jsonl
        dragoman convert recordings/ pages/ --to html
        dragoman export last | dragoman convert - - --to openai_chat
    """,
    codes="0: everything was written. 1: some files of a folder were not. 2: it could not be done.",
)
_command(
    "prove",
    "prove:prove",
    "Show whether recorded traffic comes back as it was.",
    group=FORMAT,
    examples="""
        dragoman prove traffic.jsonl
        dragoman prove recordings/ --dialect anthropic --table-to fidelity/
    """,
    codes="0: everything came back. 1: something did not. 2: the records cannot be read.",
)
_command(
    "price",
    "price:price",
    "Print the receipt for a call of a model.",
    group=FORMAT,
    examples="""
        dragoman price sonnet --input-tokens 800 --output-tokens 420
        dragoman price openai:gpt-5 --input-tokens 1000 --at 2026-05-08
    """,
    codes="0: the receipt was printed. 2: the model or its price is not to be had.",
)

# --- models ----------------------------------------------------------------------------------------------------------

_command(
    "models",
    "models:models",
    "List the models that are known: what they can do and cost, and which can be called from here.\n\n"
    "A model can be called if its provider has a key or runs on this machine. Only --ready connects to the servers"
    " on this machine, such as Ollama, to find out whether they run.",
    group=MODELS,
    examples="""
        dragoman models
        dragoman models sonnet --can images --min-context 500000
        dragoman models --providers --ready
    """,
)
_command(
    "chat",
    "chat:chat",
    "Talk with a model in the terminal.\n\n"
    "Without a key, the embedded model answers. /model swaps to another one in mid-conversation, after a look at what"
    " it would be told; /help shows the rest.",
    group=MODELS,
    examples="""
        dragoman chat
        dragoman chat last
        dragoman chat --model sonnet --tool read_file --tool run_command
    """,
)
_command(
    "ask",
    "ask:ask",
    "Ask a model, and print its answer as it arrives: for pipes, scripts and quick questions.\n\n"
    "Without a key, the embedded model answers. The conversation is stored; --continue goes on with it.",
    group=MODELS,
    examples="""
        dragoman ask 'What is a dragoman?'
        git diff | dragoman ask --model sonnet 'Review this change'
        dragoman ask --continue 'And in one sentence?'
        dragoman ask --tool read_file --tool search_files 'Where is the retry logic?'
    """,
    codes="0: it answered. 1: it failed; what had arrived is kept. 2: it could not be asked. 130: it was stopped.",
)
_command(
    "swap",
    "swap:swap",
    "Show what another model would be told of a conversation, and have it go on there.\n\n"
    "Nothing that is stored changes, so that swapping back brings everything back.",
    group=MODELS,
    examples="""
        dragoman swap last gemini --dry-run
        dragoman swap last gemini
        dragoman swap last -
    """,
    codes="0: it can go on there. 1: something is in the way. 2: it could not be found out.",
)
_command(
    "login",
    "login:login",
    "Keep a provider's key in the system's keyring.\n\nIt is asked for, or read from a pipe, and never shown.",
    group=MODELS,
    examples="""
        dragoman login anthropic
        dragoman login openai < key.txt
    """,
)
_command(
    "logout",
    "login:logout",
    "Take a provider's key out of the system's keyring.",
    group=MODELS,
    examples="dragoman logout anthropic",
)
route = App(
    name="route",
    help="Show which model would answer, and why; check a routing policy.",
    group=MODELS,
    help_format="plaintext",
    help_epilogue="dragoman route COMMAND --help explains a command, with examples.",
    version_flags=[],
)
app.command(route)
_command(
    "explain",
    "route:explain",
    "Show which model would answer a message, and why.\n\n"
    "Every slot that is asked is shown with its reason. Nobody is called, and nothing is stored.",
    group=None,
    parent=route,
    examples="""
        dragoman route explain 'fix the bug in cart.py'
        dragoman route explain '@sonnet what is this?' --image chart.png
        dragoman route explain 'go on' --session last --json
    """,
    codes="0: a model answers. 1: none may. 2: it could not be found out.",
)
_command(
    "check",
    "route:check",
    "Look whether a routing policy is sound, and print every error in it with its place.",
    group=None,
    parent=route,
    examples="""
        dragoman route check .dragoman/routing.yaml
        dragoman route check routing.yaml --json
    """,
    codes="0: the policy is sound. 1: it has errors. 2: it could not be looked at.",
)

# --- the store -------------------------------------------------------------------------------------------------------

_command(
    "sessions",
    "sessions:sessions",
    "List the sessions of a store, the one that changed last first.\n\n"
    "The end of an id that stands out is enough to name a session in other commands; last names the newest.",
    group=STORE,
    examples="""
        dragoman sessions
        dragoman sessions --user ada --since 2026-11-01 --limit 100
        dragoman sessions --store postgresql://localhost/chats --json
    """,
)
_command(
    "show",
    "show:show",
    "Print a conversation for reading.\n\n"
    "Long results, inputs and thoughts are folded; --full unfolds them. Control characters are shown, not obeyed.",
    group=STORE,
    examples="""
        dragoman show last
        dragoman show 9HJ4KQ --tail 10
        dragoman show 9HJ4KQ --after 40 --limit 20 --full
    """,
    codes="0: it was printed. 2: there is no such session, or a message is damaged.",
)
_command(
    "search",
    "search:search",
    "Find messages in which all these words are, the best first.\n\n"
    "Any language. The last word may be the beginning of one; words in double quotes stand in a row.",
    group=STORE,
    examples="""
        dragoman search token bucket
        dragoman search '"rate limit" redis' --role assistant --since 2026-11-01
        dragoman search read_file --session last
    """,
    codes="0: something was found. 1: nothing was. 2: it could not be searched.",
)
_command(
    "fork",
    "sessions:fork",
    "Begin another session that shares the history of one up to a message.\n\n"
    "Nothing is copied, and the session that it comes from stays as it is.",
    group=STORE,
    examples="""
        dragoman fork last
        dragoman fork 9HJ4KQ --at 12 --title 'Another try'
    """,
)
_command(
    "export",
    "transfer:export",
    "Write a session, or all of them, as JSON Lines; or a session in another format.\n\n"
    "Messages are exactly what is stored, and the last line has the hash of everything before it. With a format, it is"
    " what convert would make of them; what it cannot say is counted.",
    group=STORE,
    examples="""
        dragoman export last > chat.jsonl
        dragoman export --all --to chats.jsonl.gz
        dragoman export last --to chat.html
        dragoman export last --to openai_chat --out chat.json
    """,
    codes="0: it was written, whole. 2: it could not be.",
)
_command(
    "import",
    "transfer:import_file",
    "Store the sessions of a file that export wrote, or messages in the canonical format, one a line.\n\n"
    "A file that was cut or changed is refused, and nothing of it is stored. The same file again changes nothing.",
    group=STORE,
    examples="""
        dragoman import chats.jsonl.gz
        dragoman import chat.jsonl --as sess_copy
        dragoman import - --store chats.db < chat.jsonl
    """,
    codes="0: everything of it is in the store. 2: it could not be stored.",
)
_command(
    "backup",
    "transfer:backup",
    "Copy a whole store into a SQLite file while it is in use, and look at the copy.\n\n"
    "The copy is a store itself: to go back to it is to name it with --store.",
    group=STORE,
    examples="""
        dragoman backup /backups/chats-2026-11-15.db
        dragoman backup copy.db --store postgresql://localhost/chats
    """,
    codes="0: the copy is there, and sound. 2: it could not be made, or what was copied is damaged.",
)
_command(
    "stats",
    "stats:stats",
    "Show how big a store is, and what was consumed and what it cost.",
    group=STORE,
    examples="""
        dragoman stats
        dragoman stats --by user --since 2026-11-01
        dragoman stats --model anthropic:claude-sonnet-4-6 --days 30
    """,
)
_command(
    "cost",
    "cost:cost",
    "Show what models have cost, by session, model, user, team, provider or day, and day by day.",
    group=STORE,
    examples="""
        dragoman cost
        dragoman cost --by user --since 2026-11-01
        dragoman cost --session last --json
    """,
)
_command(
    "reprice",
    "cost:reprice",
    "Show what the calls in a store would have cost under other prices.\n\n"
    "Nothing is written without --keep, and what a message says that it cost never changes.",
    group=STORE,
    examples="""
        dragoman reprice --prices prices.yaml
        dragoman reprice --prices prices.yaml --since 2026-11-01 --keep
    """,
)
_command(
    "trace",
    "trace:trace",
    "Print what happened in a session, as a tree of causes.\n\n"
    "Which model was chosen and why, each call of a model or a tool, what it cost and how long it took.",
    group=STORE,
    examples="""
        dragoman trace last
        dragoman trace last --type llm.call_completed --json
        dragoman trace 9HJ4KQ --follow
    """,
)
_command(
    "evaluate",
    "trace:evaluate",
    "Record how good the last turn of a session was, so that routing can learn from it.",
    group=STORE,
    examples="""
        dragoman evaluate last --score 0.8
        dragoman evaluate 9HJ4KQ --no-success --notes 'it made the file up'
    """,
)
_command(
    "verify",
    "maintenance:verify",
    "Look whether everything in a store is still what was written.\n\n"
    "Every row is read and its hash computed anew, and every large piece as well. Nothing is changed.",
    group=STORE,
    examples="""
        dragoman verify
        dragoman verify last
        dragoman verify --store postgresql://localhost/chats --json
    """,
    codes="0: everything is sound. 1: something is damaged. 2: it could not be looked at.",
)
_command(
    "repair-usage",
    "maintenance:repair_usage",
    "Put right what messages say that they consumed, where that is impossible or was forged.\n\n"
    "An impossible count becomes 0 and its cost unknown. With --message, the usage of that message is taken away"
    " whatever it says, and is counted for the session's own user. Each repair is an event usage.repaired in the trace,"
    " with what stood there before; such events are never swept.",
    group=STORE,
    examples="""
        dragoman repair-usage
        dragoman repair-usage --write
        dragoman repair-usage 9HJ4KQ --message 7 --write
    """,
)
_command(
    "delete",
    "maintenance:delete",
    "Delete a session, with the files that only it names. Its forks keep their histories.\n\n"
    "Files go first: if they cannot be deleted, the session stays. While a turn runs in it, it is refused.",
    group=STORE,
    examples="""
        dragoman delete 9HJ4KQ
        dragoman delete last --yes
        dragoman delete last --attachments s3://bucket/files
    """,
)
_command(
    "retain",
    "maintenance:retain",
    "Delete the sessions in which nothing has happened for a while, each with the files that only it names.\n\n"
    "A session in which a turn is running stays, and so does one whose files cannot be deleted. Large pieces that"
    " nobody names any more are let go as well.",
    group=STORE,
    examples="""
        dragoman retain --older-than 90d --dry-run
        dragoman retain --older-than 2y --user ada --yes
    """,
)
_command(
    "erase",
    "maintenance:erase",
    "Erase a person from a store, and print the receipt.\n\n"
    "Their sessions go; in sessions of others, what they said becomes a tombstone; what they consumed stays in the"
    " totals without them.",
    group=STORE,
    examples="""
        dragoman erase --user ada
        dragoman erase --user ada --yes --json
    """,
)

# --- mail between agents ---------------------------------------------------------------------------------------------

letter = App(
    name="letter",
    help="Look whether a letter is valid; print the schema of letters.",
    group=MAIL,
    help_format="plaintext",
    help_epilogue="dragoman letter COMMAND --help explains a command, with examples.",
    version_flags=[],
)
app.command(letter)
_command(
    "validate",
    "letter:validate",
    "Look whether a file holds letters, and print everything that is wrong, with its place.",
    group=None,
    parent=letter,
    examples="""
        dragoman letter validate letter.json
        dragoman letter validate letters.jsonl --json
        cat letter.json | dragoman letter validate -
    """,
    codes="0: it is valid. 1: it is not. 2: the file cannot be read.",
)
_command(
    "schema",
    "letter:schema",
    "Print the JSON Schema of letters, draft 2020-12.",
    group=None,
    parent=letter,
    examples="dragoman letter schema > letter.schema.json",
)
mail = App(
    name="mail",
    help="Send letters between agents, look into mailboxes, and send again what was given up.",
    group=MAIL,
    help_format="plaintext",
    help_epilogue="dragoman mail COMMAND --help explains a command, with examples.",
    version_flags=[],
)
app.command(mail)
_command(
    "send",
    "mail:send",
    "Send a letter: when the command ends, it is safe. The same letter again is one letter.",
    group=None,
    parent=mail,
    examples="""
        dragoman mail send letter.json
        cat letter.json | dragoman mail send - --team ops
    """,
)
_command(
    "inbox",
    "mail:inbox",
    "List the mailboxes of a store, or the newest letters of one. Nothing is taken out of it.",
    group=None,
    parent=mail,
    examples="""
        dragoman mail inbox
        dragoman mail inbox ARCH
        dragoman mail inbox --task TASK-070C --json
    """,
)
_command(
    "watch",
    "mail:watch",
    "Show what arrives in a mailbox, as it arrives, until Ctrl-C. Nothing is taken out of it.",
    group=None,
    parent=mail,
    examples="""
        dragoman mail watch HUMAN
        dragoman mail watch ARCH --json
    """,
)
_command(
    "dead",
    "mail:list_dead_letters",
    "List the letters that were given up and what was no letter, the newest first, with the reason.",
    group=None,
    parent=mail,
    examples="""
        dragoman mail dead
        dragoman mail dead --recipient ARCH --json
    """,
)
_command(
    "resend",
    "mail:resend",
    "Send a letter again that was given up.",
    group=None,
    parent=mail,
    examples="dragoman mail resend dead_01KR3ER9E00000000000000QQE",
)


# --- the server ------------------------------------------------------------------------------------------------------

_command(
    "serve",
    "serve:serve",
    "Serve the chat API and the web page, until you say stop.\n\n"
    "On 127.0.0.1 nobody needs a key; for any other address, make keys first. Its log is one JSON object a line.",
    group=SERVER,
    examples="""
        dragoman serve
        dragoman serve --port 8080 --model sonnet
        dragoman serve --host 0.0.0.0 --workers 4 --base-url https://chat.example.org
    """,
    codes="0: it was told to stop. 2: it could not be served.",
)
keys = App(
    name="keys",
    help="Make, list and take back the keys that callers of a server need.",
    group=SERVER,
    help_format="plaintext",
    help_epilogue="dragoman keys COMMAND --help explains a command, with examples.",
    version_flags=[],
)
app.command(keys)
_command(
    "create",
    "keys:create",
    "Make a key, and show it once.\n\n"
    "The key goes to the standard output alone, so that it can be piped to where it is kept.",
    group=None,
    parent=keys,
    examples="""
        dragoman keys create --name laptop
        dragoman keys create --user 01JQX3 --team blue --scope chat --scope history:write --expires 90d
    """,
)
_command(
    "list",
    "keys:list_keys",
    "List the keys of a store: whose they are, what they allow, when they were used.",
    group=None,
    parent=keys,
    examples="dragoman keys list --json",
)
_command(
    "revoke",
    "keys:revoke",
    "Take a key back. Servers refuse it within a second.",
    group=None,
    parent=keys,
    examples="dragoman keys revoke 8fK2mQ0x",
)


_SYSTEM_CODES: Final[dict[type[OSError], str]] = {
    FileNotFoundError: "file_not_found",
    FileExistsError: "file_exists",
    IsADirectoryError: "is_a_directory",
    NotADirectoryError: "not_a_directory",
    PermissionError: "not_permitted",
}


def main() -> None:
    """Run the command that the arguments name."""
    for argument in sys.argv[1:]:
        if not _is_text(argument):
            _fail(f"{argument!a}: an argument is not UTF-8. Name files and write texts in UTF-8 [usage]")
    try:
        sys.exit(app(exit_on_error=False, print_error=False))
    except CycloptsError as error:
        _fail(_usage_text(error))
    except DragomanError as error:
        _fail(f"{error} [{error.code}]")
    except BrokenPipeError:  # who read what we print has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error} [{_system_code(error)}]")
    except OverflowError as error:  # a length of time such as 99999999y
        _fail(f"a number or a length of time is too large ({error}) [usage]")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        sys.exit(130)


def _is_text(argument: str) -> bool:
    """Return whether an argument came as UTF-8. Bytes that are not become lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in argument)


def _system_code(error: OSError) -> str:
    """Return the stable code of an error of the operating system."""
    return next((code for kind, code in _SYSTEM_CODES.items() if isinstance(error, kind)), "system_error")


def _usage_text(error: CycloptsError) -> str:
    """Return what is wrong with the arguments, and the help page that explains them."""
    text = str(error).strip()
    if text.endswith("..."):  # a list of commands that was cut; the help page has all of them
        text = text.partition(" Available commands:")[0]
    text = text if text.endswith((".", "?")) else f"{text}."
    command = " ".join(("dragoman", *(error.command_chain or ()), "--help"))
    return f"{text} See {command} [usage]"


def _fail(text: str) -> None:
    sys.stderr.write(f"dragoman: {' '.join(text.split())}\n")
    sys.exit(2)
