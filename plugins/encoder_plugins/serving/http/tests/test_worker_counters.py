"""Processes that count as one, through a file: here several objects, in the cluster several processes."""

import multiprocessing
from pathlib import Path

import pytest

from encoder_plugins.serving.http import worker_counters
from encoder_plugins.serving.http.worker_counters import Alone, Shared
from encoder_plugins.serving.limits import Census


def test_a_single_process_is_complete_and_counts_itself() -> None:
    alone = worker_counters.of(None)
    assert isinstance(alone, Alone)
    alone.open()
    alone.publish(3)
    assert (alone.total(), alone.complete()) == (3, True)


def test_all_count_together_and_are_complete_when_the_last_has_come(tmp_path: Path) -> None:
    settings = worker_counters.new(3, tmp_path)
    doors = [Shared(settings) for _ in range(3)]
    for number, door in enumerate(doors):
        assert not doors[0].complete()
        assert door.listening() == number
        door.open()
        door.publish(number + 1)
    assert [door.total() for door in doors] == [6, 6, 6]
    assert all(door.complete() for door in doors)
    assert list(tmp_path.iterdir()) == []
    doors[1].publish(0)
    assert doors[2].total() == 4


def test_one_too_many_is_refused(tmp_path: Path) -> None:
    settings = worker_counters.new(2, tmp_path)
    doors = [Shared(settings) for _ in range(2)]
    doors[0].open()
    late = Shared(settings)
    doors[1].open()
    # the name is gone by now, as for any process that starts too late
    with pytest.raises(FileNotFoundError):
        late.open()


def _count(path: str, processes: int, at_work: int) -> None:
    door = Shared(Census(path=path, processes=processes))
    door.open()
    door.publish(at_work)


def test_processes_see_each_other(tmp_path: Path) -> None:
    settings = worker_counters.new(4, tmp_path)
    own = Shared(settings)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_count, args=(settings.path, 4, 10 * number)) for number in (1, 2, 3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
        assert other.exitcode == 0
    assert (own.total(), own.listening(), own.complete()) == (60, 3, False)
    own.open()
    own.publish(4)
    assert (own.total(), own.complete()) == (64, True)
