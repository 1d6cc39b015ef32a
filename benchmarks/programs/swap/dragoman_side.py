"""Continue a conversation with the model of another provider."""

from dragoman import Agent

with Agent() as agent:
    first = agent.ask("Propose a name.", model="claude-sonnet-4-5")
    print(agent.ask("Argue against it.", model="gpt-4o", session=first.session_id).text)
