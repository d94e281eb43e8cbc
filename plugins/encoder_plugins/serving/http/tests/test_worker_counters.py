"""Processes that count as one, through a file: here several objects, in the cluster several processes."""

import fcntl
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from encoder_plugins.serving.http import worker_counters
from encoder_plugins.serving.http.worker_counters import SharedCounters, SingleProcess
from encoder_plugins.serving.settings import CountersFile


def test_a_single_process_is_complete_and_counts_itself() -> None:
    single = worker_counters.counters_of(None)
    assert isinstance(single, SingleProcess)
    single.open()
    single.publish(3)
    assert (single.total(), single.of_engine(), single.complete()) == (3, 3, True)


def test_all_count_together_and_are_complete_when_the_last_has_come(tmp_path: Path) -> None:
    file = worker_counters.new(3, tmp_path)
    processes = [SharedCounters(file) for _ in range(3)]
    for number, process in enumerate(processes):
        assert not processes[0].complete()
        assert process.listening() == number
        process.open()
        process.publish(number + 1)
    assert [process.total() for process in processes] == [6, 6, 6]
    assert all(process.complete() for process in processes)
    assert list(tmp_path.iterdir()) == []
    processes[1].publish(0)
    assert processes[2].total() == 4


def test_two_that_come_last_at_the_same_time_both_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = worker_counters.new(2, tmp_path)
    one, other = SharedCounters(file), SharedCounters(file)
    complete = one.complete

    def after_the_other() -> bool:
        # takes the last slot, and removes the file's name, before the first one does
        other.open()
        return complete()

    monkeypatch.setattr(one, "complete", after_the_other)
    one.open()
    assert (one.listening(), other.complete(), list(tmp_path.iterdir())) == (2, True, [])


def test_one_too_many_is_refused(tmp_path: Path) -> None:
    file = worker_counters.new(2, tmp_path)
    processes = [SharedCounters(file) for _ in range(2)]
    processes[0].open()
    late = SharedCounters(file)
    processes[1].open()
    # the name is gone by now, as for any process that starts too late
    with pytest.raises(FileNotFoundError):
        late.open()


def test_more_processes_than_slots_are_refused_by_number(tmp_path: Path) -> None:
    file = worker_counters.new(2, tmp_path)
    assert isinstance(worker_counters.counters_of(file), SharedCounters)
    # three numbers of four bytes for each process
    assert Path(file.path).stat().st_size == 24
    processes = [SharedCounters(file) for _ in range(3)]
    # one that has not opened has nothing to publish, and takes nobody's slot
    processes[2].publish(7)
    assert (processes[0].total(), processes[2].of_engine()) == (0, 0)
    processes[0]._engines[0] = processes[0]._engines[1] = 1
    with pytest.raises(RuntimeError, match="more than 2 server processes"):
        processes[2].open()


def test_slots_are_taken_one_after_the_other(tmp_path: Path) -> None:
    file = worker_counters.new(2, tmp_path)
    process = SharedCounters(file)
    with open(file.path, "rb") as held, ThreadPoolExecutor(1) as pool:
        # another process is choosing its slot
        fcntl.flock(held, fcntl.LOCK_EX)
        opening = pool.submit(process.open)
        with pytest.raises(TimeoutError):
            opening.result(0.3)
        assert process.listening() == 0
        fcntl.flock(held, fcntl.LOCK_UN)
        opening.result(30)
    assert process.listening() == 1


def _count(path: str, processes: int, in_flight: int) -> None:
    process = SharedCounters(CountersFile(path=path, processes=processes))
    process.open()
    process.publish(in_flight)


def test_processes_see_each_other(tmp_path: Path) -> None:
    file = worker_counters.new(4, tmp_path)
    own = SharedCounters(file)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_count, args=(file.path, 4, 10 * number)) for number in (1, 2, 3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
        assert other.exitcode == 0
    assert (own.total(), own.listening(), own.complete()) == (60, 3, False)
    own.open()
    own.publish(4)
    assert (own.total(), own.of_engine(), own.complete()) == (64, 4, True)
    # the three have one parent, which is another engine's
    own._engines[own._slot or 0] = own._engines[0]
    assert own.of_engine() == 64
