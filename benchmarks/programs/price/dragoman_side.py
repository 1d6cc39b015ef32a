"""Print what an answer costs."""

import dragoman

print(dragoman.ask("Say hello.", model="claude-sonnet-4-5").cost)
