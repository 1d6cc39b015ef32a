"""Asks the functions of a script, one line of JSON for each question and one for each answer.

It runs in the environment of a judge, where nothing of this project is installed.
"""

import importlib.util
import json
import sys
import traceback


def main(path: str) -> None:
    spec = importlib.util.spec_from_file_location("judge", path)
    assert spec is not None
    assert spec.loader is not None
    judge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(judge)
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a package prints is no answer
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"answer": getattr(judge, asked["question"])(asked["given"])}
        except Exception:  # noqa: BLE001  whatever it is, the test is told
            answer = {"failed": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


main(sys.argv[1])
