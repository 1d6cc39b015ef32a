"""Ask a model, and print its answer."""

import dragoman

print(dragoman.ask("Say hello.", model="claude-sonnet-4-5").text)
