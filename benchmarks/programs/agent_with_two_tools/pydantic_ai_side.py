"""An agent with two tools."""

from pydantic_ai import Agent


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It rains in {city}."


def today() -> str:
    """Today's date."""
    return "2026-05-08"


agent = Agent("anthropic:claude-sonnet-4-5", tools=[weather, today])
print(agent.run_sync("Do I need an umbrella in Bern?").output)
