"""An agent with two tools."""

import dragoman


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It rains in {city}."


def today() -> str:
    """Today's date."""
    return "2026-05-08"


print(dragoman.ask("Do I need an umbrella in Bern?", model="claude-sonnet-4-5", tools=[weather, today]).text)
