"""Letters between agents: types, validation and secrets.

    read_letter, write_letter, letter_from      bytes or JSON to a letter and back; ``LetterError`` lists all problems
    answer_problems                             whether an answer matches its request
    find_warnings                               warnings about a valid letter
    letter_id                                   the id of a letter
    task_result_letter, error_letter, …         builders
    sensitive_ids, extract_secrets, insert_secrets, mask_secrets
                                                secrets in letters
    letter_schema, read_schema_file             the published JSON Schema

All functions are pure. ``dragoman.mail`` delivers letters.
"""

from dragoman.letters.answers import answer_problems
from dragoman.letters.builders import answer_letter, error_letter, make_letter, needs_input_letter, task_result_letter
from dragoman.letters.codec import (
    Hints,
    Problem,
    find_warnings,
    hints_from,
    is_agent_name,
    letter_from,
    letter_time,
    read_letter,
    read_stored_letter,
    write_letter,
)
from dragoman.letters.schema import SCHEMA_ID, letter_schema, read_schema_file
from dragoman.letters.secret_values import (
    MASK,
    extract_secrets,
    get_reference,
    insert_secrets,
    mask_secrets,
    sensitive_ids,
)
from dragoman.letters.types import (
    HUMAN,
    PROTOCOL_VERSION,
    Artifact,
    ErrorLetter,
    ErrorReport,
    InputRequest,
    KnownContext,
    Letter,
    Metrics,
    NeedsInputLetter,
    RequestedInput,
    Result,
    TaskResult,
    TaskResultLetter,
    derive_id,
    letter_id,
)

__all__ = [
    "HUMAN",
    "MASK",
    "PROTOCOL_VERSION",
    "SCHEMA_ID",
    "Artifact",
    "ErrorLetter",
    "ErrorReport",
    "Hints",
    "InputRequest",
    "KnownContext",
    "Letter",
    "Metrics",
    "NeedsInputLetter",
    "Problem",
    "RequestedInput",
    "Result",
    "TaskResult",
    "TaskResultLetter",
    "answer_letter",
    "answer_problems",
    "derive_id",
    "error_letter",
    "extract_secrets",
    "find_warnings",
    "get_reference",
    "hints_from",
    "insert_secrets",
    "is_agent_name",
    "letter_from",
    "letter_id",
    "letter_schema",
    "letter_time",
    "make_letter",
    "mask_secrets",
    "needs_input_letter",
    "read_letter",
    "read_schema_file",
    "read_stored_letter",
    "sensitive_ids",
    "task_result_letter",
    "write_letter",
]
