"""A job's task in a file, as people write it: the message Task in JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from controller.jobs.job_state import JobError
from files.json_text import parse_json

if TYPE_CHECKING:
    from protocol import hopsum_pb2 as pb

MOST_WORDS = 400
"""Characters of what protobuf says of a wrong file."""

EXPECTED = (
    'expected a Task of protocol/hopsum.proto as a JSON object, such as {"workload": {"kind": '
    '"random", "workers": 2, "elements": 1000, "rounds": 3, "dtype": "INT32", "seed": 1}}'
)


def read_task(file: Path) -> pb.Task:
    """The task in a file; JobError names the file, the line or field, and what is expected."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"task {file}: cannot be read: {error}") from None
    try:
        return task_of_json(text)
    except ValueError as error:
        raise JobError(f"task {file}: {error}; {EXPECTED}") from None


def task_of_json(text: str) -> pb.Task:
    """The task in a JSON object. Raises ValueError."""
    from google.protobuf.json_format import ParseDict, ParseError

    from protocol import hopsum_pb2 as pb

    values = parse_json(text)
    if not isinstance(values, dict):
        raise ValueError(f"{text!r:.40} is no JSON object")
    try:
        return ParseDict(values, pb.Task())
    except ParseError as error:
        raise ValueError(" ".join(str(error).split())[:MOST_WORDS]) from None
