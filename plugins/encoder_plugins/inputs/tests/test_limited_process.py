"""A process for what is dangerous: what it is given, what ends it, and what takes its place."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.inputs import limited_process
from encoder_plugins.inputs.limited_process import LimitedProcess, ProcessEnded

MEMORY = 256 << 20
WORKER = """
import os, time

def answers(arguments, content):
    name, *values = arguments
    yield from globals()[name](content, *values)

def shown(content):
    yield [dict(os.environ), sorted(map(int, os.listdir("/proc/self/fd")))], content

def written(content, path):
    try:
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        yield error.strerror, b""

def counted(content, counts):
    for count in counts:
        yield "a" * (count - 2), bytes(count)

def busy(content, seconds):
    while time.process_time() < seconds:
        pass
    yield "done", b""

def idle(content, seconds):
    time.sleep(seconds)
    yield "done", b""

def filled(content, size):
    yield len(bytearray(size)), b""
"""

Called = Callable[..., list[tuple[Any, bytes]]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedProcess]:
    worker = tmp_path_factory.mktemp("worker") / "worker.py"
    worker.write_text(WORKER)
    found = LimitedProcess(str(worker), memory_bytes=MEMORY)
    yield found
    found.close()


def called(of: LimitedProcess, *arguments: Any, content: bytes = b"", **limits: Any) -> list[tuple[Any, bytes]]:
    return list(of.call(arguments, content, **{"processor_seconds": 20, "seconds": 30, **limits}))


def lives(process_id: int | None) -> bool:
    return process_id is not None and Path(f"/proc/{process_id}").exists()


def test_it_has_neither_the_environment_nor_the_files_of_the_server(
    process: LimitedProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.close()
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    with (tmp_path / "open").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        (((environment, descriptors), content),) = called(process, "shown", content=b"given", most_bytes=5)
    # Python itself sets the last one
    assert environment.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"
    assert (environment, content) == ({"LD_LIBRARY_PATH": "/opt/lib"}, b"given")
    # three pipes, the copy of one of them, and the folder that is listed
    assert descriptors == [0, 1, 2, 3, 4]
    assert called(process, "written", str(tmp_path / "new"), content=b"a") == [("File too large", b"")]


def test_an_answer_is_as_large_as_the_caller_lets_it_be_or_the_process_is_replaced(
    process: LimitedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert called(process, "counted", [3, 9], most_bytes=9) == [("a", bytes(3)), ("a" * 7, bytes(9))]
    for value_bytes, most_bytes in ((9, 100), (64 << 20, 9)):
        assert limited_process.MOST_VALUE_BYTES == 64 << 20
        with monkeypatch.context() as patch:
            patch.setattr(limited_process, "MOST_VALUE_BYTES", value_bytes)
            assert called(process, "counted", [9], most_bytes=most_bytes) == [("a" * 7, bytes(9))]
            before, found = process.process_id, list[tuple[Any, bytes]]()
            with pytest.raises(ProcessEnded) as ended:
                found.extend(process.call(["counted", [4, 10]], processor_seconds=9, seconds=9, most_bytes=most_bytes))
        # what came before is correct
        assert (found, ended.value.timed_out, lives(before)) == ([("aa", bytes(4))], False, False)


@pytest.mark.parametrize(
    ("arguments", "limits", "timed_out"),
    [
        (("busy", 60), {"processor_seconds": 0.1}, True),
        (("idle", 60), {"seconds": 0.1}, True),
        (("filled", MEMORY), {}, False),
        (("unknown",), {}, False),
    ],
)
def test_a_call_beyond_a_limit_ends_and_the_next_one_has_another_process(
    process: LimitedProcess, arguments: tuple[Any, ...], limits: dict[str, Any], timed_out: bool
) -> None:
    assert called(process, "filled", MEMORY // 4) == [(MEMORY // 4, b"")]
    before, begun = process.process_id, time.monotonic()
    with pytest.raises(ProcessEnded) as ended:
        called(process, *arguments, **limits)
    assert (ended.value.timed_out, lives(before)) == (timed_out, False)
    assert str(ended.value) == ("it took too long" if timed_out else "it crashed, or needed too much memory")
    assert time.monotonic() - begun < 20
    assert called(process, "idle", 0) == [("done", b"")]
    assert process.process_id != before


def test_one_that_does_not_read_ends_with_its_time(process: LimitedProcess) -> None:
    called(process, "idle", 0)
    assert process.process_id is not None
    os.kill(process.process_id, signal.SIGSTOP)
    with pytest.raises(ProcessEnded, match="it took too long"):
        # more than the pipe holds
        called(process, "idle", 0, content=bytes(1 << 20), seconds=0.3)
    assert called(process, "idle", 0) == [("done", b"")]


def test_the_limits_of_a_call_end_with_it(process: LimitedProcess) -> None:
    # both limits are far above what this takes, also on a busy machine, and below what the next call takes
    assert called(process, "busy", 0, processor_seconds=0.9, seconds=1.0) == [("done", b"")]
    before = process.process_id
    assert called(process, "busy", 1.2) == [("done", b"")]
    assert (called(process, "idle", 0), process.process_id) == ([("done", b"")], before)


def test_answers_that_nobody_reads_are_not_those_of_the_next_call(process: LimitedProcess) -> None:
    answers = process.call(["counted", [3, 4, 5]], processor_seconds=9, seconds=9, most_bytes=9)
    next(answers)
    before = process.process_id
    answers.close()
    assert not lives(before)
    assert called(process, "counted", [7], most_bytes=9) == [("aaaaa", bytes(7))]


def test_it_ends_with_its_object(process: LimitedProcess) -> None:
    called(process, "idle", 0)
    before = process.process_id
    process.close()
    assert not lives(before)
    other = LimitedProcess(process._command[-2], memory_bytes=MEMORY)
    assert other.process_id is None
    called(other, "idle", 0)
    before = other.process_id
    assert lives(before)
    del other
    gc.collect()
    assert not lives(before)


def test_a_call_that_has_not_ended_does_not_keep_the_server(process: LimitedProcess) -> None:
    code = f"""
import sys
from encoder_plugins.inputs.limited_process import LimitedProcess

answers = LimitedProcess(sys.argv[1], memory_bytes={MEMORY}).call(
    ["counted", [3, 4]], processor_seconds=9, seconds=3600, most_bytes=9
)
next(answers)
"""
    subprocess.run([sys.executable, "-c", code, process._command[-2]], check=True, timeout=60)


@pytest.mark.parametrize("content", ["1 / 0", "import time; time.sleep(60)"])
def test_one_that_does_not_start_is_an_error(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (worker := tmp_path / "worker.py").write_text(content)
    # longer than what is broken takes to end by itself
    monkeypatch.setattr(limited_process, "START_SECONDS", 2.0)
    broken, begun = LimitedProcess(str(worker), memory_bytes=MEMORY), time.monotonic()
    with pytest.raises(RuntimeError, match=r"worker\.py does not start"):
        called(broken, "idle", 0)
    assert not lives(broken.process_id)
    assert time.monotonic() - begun < 20
