"""Start a conversation with one model and continue it with another one."""

from dragoman import Agent

with Agent("chats.db", model="claude-sonnet-5-5") as agent:
    first = agent.ask("Propose a name for a tool that translates between model providers.")
    second = agent.ask("Argue against that name.", session=first.session_id, model="gpt-5")
    third = agent.ask("Now decide.", session=first.session_id)
    for answer in (first, second, third):
        print(f"{answer.model}: {answer.text}")
