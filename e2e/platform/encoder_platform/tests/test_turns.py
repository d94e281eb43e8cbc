"""Turns of several processes; here each is a thread, and the locks are of open files, not of processes."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

from encoder_node.errors import WaitTimeoutError
from encoder_node.waiting import wait_for
from encoder_platform.turns import turn


@dataclass
class Taker:
    """One that has a turn, or waits for one, until it is ended."""

    inside: Event
    leave: Event
    done: Future[None]

    def end(self) -> None:
        self.leave.set()
        self.done.result(10)


class Room:
    """The folder that all turns of a test are about."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.folder, self._pool = folder, pool

    def enter(self, *, alone: bool) -> Taker:
        inside, leave = Event(), Event()

        def stay() -> None:
            with turn(self.folder, alone=alone, seconds=10):
                inside.set()
                leave.wait(10)

        return Taker(inside, leave, self._pool.submit(stay))

    def is_closed(self, *, alone: bool) -> bool:
        """Whether nobody gets a turn now."""
        try:
            with turn(self.folder, alone=alone, seconds=0):
                return False
        except WaitTimeoutError:
            return True


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with ThreadPoolExecutor() as pool:
        yield Room(tmp_path / "turns", pool)


def test_most_turns_are_beside_each_other_and_nobody_is_alone_meanwhile(room: Room) -> None:
    takers = [room.enter(alone=False) for _ in range(3)]
    assert all(taker.inside.wait(10) for taker in takers)
    assert room.is_closed(alone=True)
    for taker in takers:
        taker.end()
    assert not room.is_closed(alone=True)


def test_one_alone_waits_for_those_inside_and_keeps_later_ones_outside(room: Room) -> None:
    first = room.enter(alone=False)
    assert first.inside.wait(10)
    alone = room.enter(alone=True)
    wait_for("one that waits at the entry", lambda: room.is_closed(alone=False), seconds=10)
    later = room.enter(alone=False)
    assert not alone.inside.is_set()
    first.end()
    assert alone.inside.wait(10)
    assert not later.inside.is_set()
    alone.end()
    assert later.inside.wait(10)
    later.end()


def test_a_turn_ends_with_the_error_of_its_block(room: Room) -> None:
    with pytest.raises(KeyError), turn(room.folder, alone=True, seconds=0):
        raise KeyError
    assert not room.is_closed(alone=True)
