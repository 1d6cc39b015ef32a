"""Store a conversation, and search it."""

from dragoman import Agent

with Agent("chats.db", model="claude-sonnet-4-5") as agent:
    agent.ask("Who was Ibn Khaldun?")
    print(agent.wait_for(agent.store.search("Khaldun"))[0].session_id)
