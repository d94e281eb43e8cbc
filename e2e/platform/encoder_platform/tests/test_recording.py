"""A recording shows what stays in a terminal, and fails with its command."""

from __future__ import annotations

import sys

import pytest

from encoder_platform import recording


def test_what_a_command_prints_in_a_terminal_is_kept() -> None:
    code = "import sys; print('in a terminal', sys.stdout.isatty()); print('1 of 2\\r2 of 2')"
    printed, seconds = recording.run([sys.executable, "-c", code])
    assert recording.shown(printed, "/home/ann") == "in a terminal True\n2 of 2"
    assert seconds > 0


def test_colours_are_kept_and_moves_of_the_cursor_are_not() -> None:
    assert (
        recording.shown("\x1b[?25l\x1b[32mReady\x1b[0m\x1b[K\r\n\x1b]0;title\x07done\r\n", "/home/ann")
        == "\x1b[32mReady\x1b[0m\ndone"
    )


def test_the_folder_of_a_user_is_in_no_picture() -> None:
    assert recording.shown("export PATH=/home/ann/.cache/bin:$PATH", "/home/ann") == "export PATH=~/.cache/bin:$PATH"


def test_a_command_that_fails_leaves_no_picture() -> None:
    with pytest.raises(SystemExit) as ended:
        recording.run([sys.executable, "-c", "raise SystemExit(3)"])
    assert ended.value.code == 3
