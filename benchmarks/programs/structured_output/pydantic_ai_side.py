"""An answer as a value of a type."""

from dataclasses import dataclass

from pydantic_ai import Agent


@dataclass
class City:
    name: str
    population: int


agent = Agent("anthropic:claude-sonnet-4-5", output_type=City)
print(agent.run_sync("The capital of Switzerland?").output)
