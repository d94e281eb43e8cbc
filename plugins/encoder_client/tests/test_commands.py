"""The command line, and what a benchmark makes of its numbers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from encoder_client import plots
from encoder_client.commands import main
from encoder_client.plots import Measured
from encoder_client.tests.scripted_server import Reply, ScriptedServer, entities, refusal, vectors


def output(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(arguments) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def test_a_request_prints_entities_by_text(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer("deberta_gliner", entities) as server:
        found = output(capsys, "ask", server.url, "Tim Cook", "--label", "boss", "--threshold", "0.25")
        assert found.split() == ["0.500", "boss", "Tim", "Cook"]
        assert server.posted[0].data["threshold"] == 0.25
        lines = output(capsys, "ask", server.url, "a", "b", "--label", "x", "--json").splitlines()
        assert [json.loads(line)["entities"][0]["text"] for line in lines] == ["a", "b"]
        assert "--label" in output(capsys, "ask", server.url, "a", status=1)
        lines = output(capsys, "ask", server.url, "--label", "x", "a", "--json", "b").splitlines()
        assert [json.loads(line)["text"] for line in lines] == ["a", "b"]


def test_a_request_prints_vectors_and_rankings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(data: Any) -> Reply:
        if "query" in data:
            return Reply(200, {"data": {"results": [{"indices": [1, 0], "scores": [0.5, 0.25]}]}})
        return vectors(data)

    monkeypatch.setenv("ENCODER_API_KEY", "secret")
    with ScriptedServer("sentence_transformer", handle) as server:
        assert output(capsys, "ask", server.url, "ab").startswith("3  2.0000 97.0000 1.0000")
        found = json.loads(output(capsys, "ask", server.url, "ab", "--as-query", "--json"))
        assert found == {"text": "ab", "embedding": [2.0, 97.0, 1.0]}
        assert [request.data["input_type"] for request in server.posted] == ["document", "query"]
        ranked = output(capsys, "ask", server.url, "a", "b", "--query", "q").splitlines()
        assert [line.split() for line in ranked] == [["0.5000", "b"], ["0.2500", "a"]]
        assert {request.headers["authorization"] for request in server.received} == {"Bearer secret"}


def test_options_that_an_answer_does_not_depend_on_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, handler, options in (
        ("sentence_transformer", vectors, (["--label", "x"], ["--threshold", "0.5"], ["--query", "q", "--as-query"])),
        ("lfm2_colbert", vectors, (["--label", "x"], ["--query", "q", "--threshold", "0.5"])),
        ("deberta_gliner", entities, (["--label", "x", "--as-query"],)),
    ):
        with ScriptedServer(kind, handler) as server:
            for given in options:
                refused = next(name for name in reversed(given) if name.startswith("--"))
                assert output(capsys, "ask", server.url, "a", *given, status=1).startswith(f"error: {refused}: ")
            assert not server.posted
    with ScriptedServer("sentence_transformer", vectors) as server:
        assert "labels: " in output(capsys, "bench", server.url, "--label", "x", status=1)
    with ScriptedServer("deberta_gliner", entities) as server:
        assert "query: " in output(capsys, "bench", server.url, "--as-query", status=1)


def test_labels_are_sent_to_a_server_that_does_not_state_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer("deberta_gliner", entities, undescribed=refusal(404, "no such path")) as server:
        assert output(capsys, "ask", server.url, "Tim", "--label", "boss").split() == ["0.500", "boss", "Tim"]
        load = ["--requests", "2", "--warm", "0", "--label", "boss", "--json"]
        assert json.loads(output(capsys, "bench", server.url, *load))["failed"] == {}
        # the reason is that of the server
        server.handler = lambda data: refusal(404, "no such path")
        assert output(capsys, "ask", server.url, "Tim", "--label", "boss", status=1) == "error: no such path\n"


def test_models_prints_what_a_server_states(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer("sentence_transformer", vectors, texts=7) as server:
        found = json.loads(output(capsys, "models", server.url, "--json"))
        assert (found["models"], found["adapters"]) == ([{"id": "served", "max_model_len": 512}], ["legal"])
        assert (found["plugin"], found["limits"]["texts"]) == ("sentence_transformer", 7)
        text = output(capsys, "models", server.url)
        assert "limit   texts 7\n" in text
        assert text.startswith("model   served (512 tokens)\nadapter legal\nplugin ")


def test_a_benchmark_prints_percentiles_and_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ScriptedServer("sentence_transformer", vectors) as server:
        picture = tmp_path / "latency.svg"
        numbers = ["--requests", "20", "--warm", "3", "--clients", "4", "--texts", "3", "--words", "5"]
        found = json.loads(output(capsys, "bench", server.url, *numbers, "--json", "--svg", str(picture)))
        assert (found["requests"], found["failed"], len(server.posted)) == (20, {}, 23)
        assert {len(request.data["texts"]) for request in server.posted} == {3}
        assert {len(text.split()) for request in server.posted for text in request.data["texts"]} == {5}
        assert found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
        assert server.most_in_flight <= 4
        assert "20 requests" in "".join(ElementTree.parse(picture).getroot().itertext())
        assert "p95_ms" in output(capsys, "bench", server.url, *numbers)
        server.handler = lambda data: refusal(503, "full")
        assert "full" in output(capsys, "bench", server.url, *numbers, status=1)


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer("sentence_transformer", lambda data: refusal(400, "bad", "data.texts[0]")) as server:
        assert output(capsys, "ask", server.url, "a", status=1) == "error: data.texts[0]: bad\n"
    assert "url: " in output(capsys, "models", "nowhere", status=1)
    assert "clients: " in output(capsys, "bench", "http://nowhere", "--clients", "0", status=1)
    for wrong in (["unknown"], ["ask", "http://nowhere", "a", "--unknown", "b"], ["models", "http://nowhere", "a"]):
        with pytest.raises(SystemExit) as caught:
            main(wrong)
        assert caught.value.code == 2


def measured(*latencies: float) -> Measured:
    return Measured(seconds=2.0, latencies=latencies, texts=3, failed={"BusyError": 1} if latencies else {})


@pytest.mark.parametrize(("percent", "seconds"), [(50, 0.05), (90, 0.09), (95, 0.1), (100, 0.1), (1, 0.01)])
def test_percentiles_are_those_of_requests_that_were_answered(percent: float, seconds: float) -> None:
    assert measured(*(number / 100 for number in range(10, 0, -1))).percentile(percent) == seconds


def test_a_summary_counts_requests_and_texts() -> None:
    found = measured(0.1, 0.3).summary()
    assert found == {
        **{"requests": 2, "seconds": 2.0, "requests_per_second": 1.0, "texts_per_second": 3.0},
        **{"failed": {"BusyError": 1}, "p50_ms": 100.0, "p90_ms": 300.0, "p95_ms": 300.0, "p99_ms": 300.0},
        "max_ms": 300.0,
    }
    assert measured().summary()["requests"] == 0
    with pytest.raises(ValueError, match="no request"):
        measured().percentile(50)


@pytest.mark.parametrize("latencies", [[0.1], [0.1, 0.1], [0.1, 0.2, 0.9]])
def test_a_histogram_counts_every_request_once(latencies: list[float]) -> None:
    bars = plots.histogram(latencies, bins=4)
    assert sum(count for _, _, count in bars) == len(latencies)
    assert (len(bars), bars[0][0]) == (4, 0.1)
    assert bars[-1][1] >= max(latencies)
    lines = plots.text(measured(*latencies)).splitlines()
    assert sum(line.endswith("#") for line in lines) == sum(count > 0 for _, _, count in plots.histogram(latencies))
    ElementTree.fromstring(plots.svg(measured(*latencies), "a < b"))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_reported_in_one_line(unbuffered: str) -> None:
    with ScriptedServer("sentence_transformer", vectors) as server, Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "encoder_client", "models", server.url],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")


def test_a_command_that_is_interrupted_says_so_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-m", "encoder_client", "models", f"http://127.0.0.1:{server.getsockname()[1]}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # a shell lets its background jobs, such as tests, ignore Ctrl-C
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        connection, _ = server.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")
