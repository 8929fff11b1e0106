"""Files that somebody else wrote: whatever they are, the answer is a sentence, and soon."""

import os

import pytest

from simulator.errors import BadInputError
from simulator.imports.json_file import MAX_BYTES, read_json_object, real_number, whole_number


def refused(path, message):
    with pytest.raises(BadInputError, match=message):
        read_json_object(path)


def test_a_field_given_twice_is_refused(tmp_path):
    path = tmp_path / "twice.json"
    path.write_text('{"a": 1, "b": {"hidden_size": 1, "hidden_size": 2}}')
    refused(path, "hidden_size stands there more than once")


def test_a_number_of_thousands_of_digits_is_refused(tmp_path):
    path = tmp_path / "digits.json"
    path.write_text('{"a": ' + "9" * 5_000 + "}")
    refused(path, "a number of too many digits")


def test_a_device_and_a_pipe_are_not_waited_for(tmp_path):
    refused(tmp_path.joinpath("/dev/zero"), "is no regular file")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "is no regular file")


def test_a_huge_file_is_refused(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    refused(path, "has more than 32 MB")


def test_a_path_that_is_none_is_refused(tmp_path):
    refused(tmp_path / "a\0b", "is no path|does not exist|cannot be read")
    refused(tmp_path / ("a" * 5_000), "cannot be read: File name too long")
    refused(tmp_path, "is no regular file")


def test_numbers_are_not_converted(tmp_path):
    with pytest.raises(BadInputError, match="a='1' must be a whole number"):
        whole_number({"a": "1"}, "a", tmp_path)
    with pytest.raises(BadInputError, match="must be a finite number"):
        real_number({"a": 10**400}, "a", tmp_path)
