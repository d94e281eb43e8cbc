"""Commands whose standard output is full, closed at the other end, or not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from encoder_plugins import standard_output

LIST = [sys.executable, "-m", "encoder_plugins", "list"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("to", "reported"), [("full", "No space left on device"), ("closed", "Broken pipe")])
def test_an_output_that_cannot_be_written_is_reported_in_one_line(to: str, reported: str, unbuffered: str) -> None:
    if to == "full":
        target = os.open("/dev/full", os.O_WRONLY)
    else:
        end, target = os.pipe()
        os.close(end)
    try:
        done = subprocess.run(
            LIST,
            stdout=target,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    finally:
        os.close(target)
    assert done.returncode == standard_output.FAILED
    assert done.stderr == f"standard output cannot be written: {reported}\n"


def test_a_command_without_a_standard_output_prints_nothing() -> None:
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *LIST], stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_error_of_another_file_is_not_taken_for_one_of_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> int:
        print("before")
        with Path("/dev/full").open("w") as other:
            other.write("x")
        return 0

    with pytest.raises(OSError, match="No space left on device"):
        standard_output.checked(full)
    assert capsys.readouterr().out == "before\n"
    assert standard_output.checked(lambda: 3) == 3
