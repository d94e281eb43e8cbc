"""How the engines of ``offline.Model`` start, at once where they take turns on a GPU, else one after the other, and which get requests."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encoder_plugins.errors import BadArgument, EngineEnded, InvalidRequest
from encoder_plugins.offline import client
from encoder_plugins.serving import mps
from encoder_plugins.serving.command import START_TURNS, TURN_TAKING_WORKER

# importing vLLM warns a lot about itself
pytestmark = pytest.mark.filterwarnings("ignore")


class FakeEngine:
    """Writes down what is done with it; the one that fails ends before it is ready."""

    events: list[str]
    fails: int | None = None
    turns: set[Path]
    waiting = 0
    ended = False

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._name = sum(event.startswith("start") for event in self.events)
        assert (mps.PIPES in environment) == (self.events.count("daemon") > self.events.count("daemon ends"))
        self.events.append(f"start {self._name}")
        if TURN_TAKING_WORKER in arguments:
            path = Path(environment[START_TURNS])
            assert path.parent.is_dir()
            self.turns.add(path)

    def wait_until_ready(self) -> None:
        if self._name == self.fails:
            raise EngineEnded("it ended")
        self.events.append(f"ready {self._name}")

    def submit(self, body: bytes) -> Future[Any]:
        if self.fails == self._name:
            # while the request waited for room
            self.ended = True
            raise EngineEnded("it ended")
        data = msgspec.json.decode(body)["data"]
        answered = Future[Any]()
        if isinstance(data, dict):
            answered.set_result((self._name, data))
        else:
            answered.set_exception(InvalidRequest("no object", param="data"))
        return answered

    def cancel_start(self) -> None:
        self.events.append(f"cancel {self._name}")

    def abandon(self) -> None:
        if f"end {self._name}" not in self.events:
            self.events.append(f"abandoned {self._name}")

    def hang_up(self) -> None:
        self.events.append(f"end {self._name}")

    def wait(self, seconds: float) -> None:
        assert 0 <= seconds <= client.STOP_SECONDS
        self.events.append(f"waited {self._name}")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    """The class of engines, of this test only."""
    made = type("Engine", (FakeEngine,), {"events": [], "turns": set()})
    monkeypatch.setattr(client, "_Engine", made)
    return made


def test_engines_of_a_gpu_start_at_once_and_take_turns(prepared: Path, engines: type[FakeEngine]) -> None:
    with client.Model(prepared, accelerator="nvidia", engines=3) as model:
        assert model.engines == 3
        assert engines.events == ["start 0", "start 1", "start 2", "ready 0", "ready 1", "ready 2"]
        # all lock the same file, and its folder is removed once they are ready
        (path,) = engines.turns
        assert not path.parent.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"accelerator": "cpu"},
        # with a worker of the user's own, nobody takes a turn
        {"accelerator": "nvidia", "arguments": ("--worker-cls", "own.Worker")},
    ],
)
def test_engines_that_take_no_turns_start_one_after_the_other(
    prepared: Path, engines: type[FakeEngine], options: Any
) -> None:
    with client.Model(prepared, engines=2, **options):
        assert engines.events == ["start 0", "ready 0", "start 1", "ready 1"]
    assert engines.turns == set()


def test_where_one_does_not_start_the_others_end(prepared: Path, engines: type[FakeEngine]) -> None:
    engines.fails = 1
    with pytest.raises(EngineEnded, match="it ended"):
        client.Model(prepared, accelerator="nvidia", engines=3)
    # all hear of it before one is waited for
    assert engines.events[4:7] == ["cancel 0", "cancel 1", "cancel 2"]
    assert engines.events[7:] == ["end 0", "end 1", "end 2", "waited 0", "waited 1", "waited 2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accelerator": "tpu"}, "accelerator: 'tpu' is not one of cpu, nvidia"),
        ({"max_model_len": 0}, "max_model_len: 0 is not a whole number above 0"),
        ({"engines": 0}, "engines: 0 is not a whole number above 0"),
        ({"engines": -1}, "engines: -1 is not a whole number above 0"),
        ({"engines": True}, "engines: True is not a whole number above 0"),
        ({"engines": "2"}, "engines: '2' is not a whole number above 0"),
        ({"arguments": "--enforce-eager"}, "arguments: it is one text; pass a list of texts"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_its_name(
    options: Any, message: str, prepared: Path, engines: type[FakeEngine]
) -> None:
    with pytest.raises(BadArgument) as refused:
        client.Model(prepared, **{"accelerator": "cpu"} | options)
    assert str(refused.value) == message
    assert engines.events == []


def test_an_engine_whose_start_is_interrupted_ends_at_once(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    started: list[client._Engine] = []

    def interrupted(engine: client._Engine) -> None:
        started.append(engine)
        raise KeyboardInterrupt

    monkeypatch.setattr(client._Engine, "wait_until_ready", interrupted)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(KeyboardInterrupt):
        client.Model(prepared, accelerator="nvidia", engines=1)
    # not by the signal that ends it where it has not ended in time
    assert started[0]._process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("fails", [None, 1])
def test_engines_share_a_gpu_until_the_last_has_ended(
    prepared: Path, engines: type[FakeEngine], monkeypatch: pytest.MonkeyPatch, fails: int | None
) -> None:
    @contextmanager
    def shared_gpu(environment: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
        assert environment["PATH"]
        engines.events.append("daemon")
        yield {mps.PIPES: "/pipes"}
        engines.events.append("daemon ends")

    monkeypatch.setattr(mps, "shared_gpu", shared_gpu)
    monkeypatch.delenv(mps.PIPES, raising=False)
    engines.fails = fails
    with contextlib.suppress(EngineEnded), client.Model(prepared, accelerator="nvidia", engines=2):
        assert fails is None
    assert engines.events[0] == "daemon"
    assert engines.events[-3:] == ["waited 0", "waited 1", "daemon ends"]
    # one has a GPU for itself, and on a CPU there is nothing to share
    engines.fails = None
    client.Model(prepared, accelerator="nvidia", engines=1).close()
    client.Model(prepared, accelerator="cpu", engines=2).close()
    assert engines.events.count("daemon") == 1


def test_requests_go_to_the_engines_that_are_left(prepared: Path, engines: type[FakeEngine]) -> None:
    with client.Model(prepared, accelerator="nvidia", engines=3) as model:
        model._engines[0].ended = True
        engines.fails = 1
        assert list(model.map([{"text": "a"}, {"text": "b"}])) == [(2, {"text": "a"}), (2, {"text": "b"})]
        model._engines[2].ended = True
        with pytest.raises(EngineEnded, match="has ended"):
            model.answer({"text": "a"})


def test_none_among_the_requests_is_one_of_them(prepared: Path, engines: type[FakeEngine]) -> None:
    given: Any = [None, {"text": "a"}, None, {"text": "b"}]
    found = []
    with client.Model(prepared, accelerator="nvidia", engines=1) as model:
        answers = model.map(given)
        for request in given:
            if request is None:
                with pytest.raises(InvalidRequest):
                    next(answers)
            else:
                found.append(next(answers))
        assert list(answers) == []
    assert found == [(0, {"text": "a"}), (0, {"text": "b"})]


def test_an_error_of_the_requests_comes_behind_the_answers_before_it(prepared: Path, engines: type[FakeEngine]) -> None:
    def requests() -> Iterator[dict[str, str]]:
        yield {"text": "a"}
        raise OSError("the file cannot be read")

    with client.Model(prepared, accelerator="nvidia", engines=1) as model:
        answers = model.map(requests())
        assert next(answers) == (0, {"text": "a"})
        with pytest.raises(OSError, match="cannot be read"):
            next(answers)
        assert list(answers) == []


def test_the_engines_of_a_model_that_is_dropped_end(prepared: Path, engines: type[FakeEngine]) -> None:
    model = client.Model(prepared, accelerator="nvidia", engines=2)
    answers = model.map([{"text": "a"}])
    del model
    # who iterates needs them
    assert next(answers) == (0, {"text": "a"})
    assert engines.events[-1] == "ready 1"
    del answers
    assert engines.events[4:] == ["abandoned 0", "abandoned 1"]


WORKER = """\
import sys
from multiprocessing.connection import Connection

connection = Connection(int(sys.argv[3]))
connection.send("ready")
number = int.from_bytes(connection.recv_bytes()[:8], "little")
# which the test sends when it has abandoned the engine
connection.recv_bytes()
connection.send((number, "answer", (b'{"data": 1}', "application/json", {})))
try:
    connection.recv_bytes()
except EOFError:
    sys.exit(7)
"""


def test_an_engine_that_is_abandoned_answers_what_it_has_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{WORKER}")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    engine = client._Engine([], os.environ)
    engine.wait_until_ready()
    answer = engine.submit(b"{}")
    engine.abandon()
    engine._here.send_bytes(b"go on")
    assert answer.result(30) == 1
    assert engine._process.wait(30) == 7
    engine.wait(0)
