"""Calls the functions of a script: one line of JSON per question and one per answer.

It runs in the environment of a judge, where this project is not installed.
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
    sys.stdout = sys.stderr  # the output of a package is not an answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(judge, request["question"])(request["value"])}
        except Exception:  # noqa: BLE001  the test receives every exception
            answer = {"failed": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


main(sys.argv[1])
