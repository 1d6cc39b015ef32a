"""An answer as a value of a type."""

import litellm
from pydantic import BaseModel


class City(BaseModel):
    name: str
    population: int


answer = litellm.completion(
    "anthropic/claude-sonnet-4-5", [{"role": "user", "content": "The capital of Switzerland?"}], response_format=City
)
print(repr(City.model_validate_json(answer.choices[0].message.content)))
