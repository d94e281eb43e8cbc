import struct

import pytest

from encoder_node import readiness


def reply(number: int, flags: int, answers: int) -> bytes:
    return struct.pack(">HHHHHH", number, flags, 1, answers, 0, 0)


def test_question_is_for_an_address_by_labels() -> None:
    question = readiness.dns_query("a.example", 7)
    assert question[:2] == b"\x00\x07"
    assert question[12:] == b"\x01a\x07example\x00\x00\x01\x00\x01"


@pytest.mark.parametrize(
    ("message", "good"),
    [
        (reply(7, 0x8180, 1), True),
        (reply(7, 0x8180, 0), False),
        (reply(7, 0x8183, 1), False),
        (reply(8, 0x8180, 1), False),
        (b"", False),
    ],
    ids=["an answer", "no answer", "an error", "for another question", "nothing"],
)
def test_reply_counts_only_with_an_answer(message: bytes, good: bool) -> None:
    assert readiness.has_answer(message, 7) is good
