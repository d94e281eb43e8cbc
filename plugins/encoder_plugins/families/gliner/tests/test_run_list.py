"""Lists of labels as token ids: what they are equal to, and what is made of them once."""

from __future__ import annotations

import pytest

from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner.payload import RunList

ONE, TWO = b"\1\0\0\0", b"\2\0\0\0\3\0\0\0"


def test_a_list_is_found_where_a_tuple_of_the_same_runs_is() -> None:
    runs = RunList([ONE, TWO])
    assert runs == (ONE, TWO)
    assert {(ONE, TWO): "found"}[runs] == {runs: "found"}[(ONE, TWO)] == "found"
    assert {runs: "found"}.get((TWO, ONE)) is None


@pytest.mark.parametrize("given", [[ONE, TWO, ONE], (ONE, TWO, ONE), RunList([ONE, TWO, ONE])])
def test_what_is_sent_is_read_as_the_same_list(given: list[bytes] | tuple[bytes, ...]) -> None:
    sent = payload.encode_runs(given)
    assert sent == {"label_runs": ONE + TWO + ONE, "label_run_tokens": b"\1\0\0\0\2\0\0\0\1\0\0\0"}
    read = payload.decode_runs(sent)
    assert read == tuple(given)
    # the copy that another process gets is the same object, too, for whatever is made of it
    assert payload.decode_runs({name: bytes(bytearray(value)) for name, value in sent.items()}) is read


def test_a_list_stays_itself_and_others_become_one() -> None:
    runs = RunList([ONE])
    assert RunList.of(runs) is runs
    assert RunList.of([ONE]) == runs


def test_labels_that_are_there_twice_have_tokens_once() -> None:
    assert RunList([ONE, TWO, ONE, TWO]).tokens == 3
    assert RunList().tokens == 0


def test_all_labels_of_a_list_are_put_together_once() -> None:
    runs = RunList([ONE, TWO])
    assert payload.encode_runs(runs)["label_runs"] is payload.encode_runs(runs)["label_runs"]
