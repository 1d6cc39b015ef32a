"""Chat with a model that may call two functions of yours."""

from datetime import date

from dragoman import Agent


def weather(city: str, day: date) -> str:
    """The weather forecast for a city.

    Args:
        city: The name of the city.
        day: The day of the forecast.
    """
    return f"{city}, {day:%d %B}: rain, 9 °C"


def today() -> date:
    """Today's date."""
    return date(2026, 5, 8)


with Agent("chats.db", model="claude-sonnet-5-5", tools=[weather, today]) as agent:
    answer = agent.ask("Do I need an umbrella in Bern tomorrow?")
    print(answer.text)
    for text in agent.stream("And a coat?", session=answer.session_id):
        print(text, end="", flush=True)
    print()
