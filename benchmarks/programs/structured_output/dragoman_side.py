"""An answer as a value of a type."""

from dataclasses import dataclass

import dragoman


@dataclass
class City:
    name: str
    population: int


print(dragoman.ask("The capital of Switzerland?", model="claude-sonnet-4-5", output=City).parsed)
