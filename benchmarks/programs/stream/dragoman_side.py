"""Print an answer as it arrives."""

import dragoman

for text in dragoman.stream("Say hello.", model="claude-sonnet-4-5"):
    print(text, end="")
