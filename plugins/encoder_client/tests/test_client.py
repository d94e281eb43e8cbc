"""The clients against a server that fails in every way: what is sent again, what is raised, and what stays usable."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_client import (
    ArgumentError,
    AsyncSentenceTransformer,
    AuthenticationError,
    BusyError,
    ConnectionFailedError,
    EncoderClientError,
    InvalidAnswerError,
    InvalidRequestError,
    NotServedError,
    RequestTimeoutError,
    SentenceTransformer,
    ServerError,
)
from encoder_client.tests.scripted_server import Reply, ScriptedServer, numbered, refusal, vectors
from encoder_plugins.prep.tests import certificates

PLUGIN = "sentence_transformer"
TEXTS = [f"{number} {'x' * (number % 5)}" for number in range(20)]
Encode = Callable[..., Any]


def synchronous(url: str, texts: Any, *, batch_size: int = 32, **options: Any) -> Any:
    with SentenceTransformer(url, **options) as model:
        return model.encode(texts, batch_size=batch_size)


def asynchronous(url: str, texts: Any, *, batch_size: int = 32, **options: Any) -> Any:
    async def call() -> Any:
        async with AsyncSentenceTransformer(url, **options) as model:
            return await model.encode(texts, batch_size=batch_size)

    return asyncio.run(call())


@pytest.fixture(params=[synchronous, asynchronous])
def encode(request: pytest.FixtureRequest) -> Encode:
    found: Encode = request.param
    return found


def replies(*first: Reply) -> Callable[[Any], Reply]:
    """Answer the first requests so, and those behind them with vectors."""
    left = list(first)
    lock = threading.Lock()

    def handle(data: Any) -> Reply:
        with lock:
            return left.pop(0) if left else vectors(data)

    return handle


def test_a_long_list_is_split_at_the_limits_of_the_server_and_keeps_its_order(encode: Encode) -> None:
    def slow(data: Any) -> Reply:
        time.sleep(0.01 * (len(data["texts"][0]) % 3))
        return vectors(data)

    with ScriptedServer(PLUGIN, slow, texts=3, characters=12) as server:
        found = encode(server.url, TEXTS, concurrency=2)
        np.testing.assert_array_equal(found, [numbered(text) for text in TEXTS])
        sent = [request.data["texts"] for request in server.posted]
        assert sorted(text for texts in sent for text in texts) == sorted(TEXTS)
        assert all(len(texts) <= 3 and sum(map(len, texts)) <= 12 for texts in sent)
        assert 1 <= server.most_in_flight <= 2


def test_a_body_keeps_the_limit_in_bytes(encode: Encode) -> None:
    with ScriptedServer(PLUGIN, vectors, body_bytes=900) as server:
        texts = ["ü" * 100] * 10
        assert encode(server.url, texts).shape == (10, 3)
        assert len(server.posted) > 1
        assert max(request.size for request in server.posted) <= 900


@pytest.mark.parametrize("status", [403, 404, 405])
def test_a_server_without_a_description_gets_small_requests(encode: Encode, status: int) -> None:
    with ScriptedServer(PLUGIN, vectors, undescribed=refusal(status, "not here")) as server:
        assert encode(server.url, ["a"] * 40, batch_size=100).shape == (40, 3)
        assert sorted(len(request.data["texts"]) for request in server.posted) == [8, 32]


def test_an_address_of_another_program_is_an_error(encode: Encode) -> None:
    for body in (b"<html>", b"[]"):
        with ScriptedServer(PLUGIN, vectors, undescribed=Reply(200, body)) as server:
            with pytest.raises(InvalidAnswerError):
                encode(server.url, "a")
            assert server.posted == []


def test_a_request_is_sent_again_after_the_seconds_of_retry_after(encode: Encode) -> None:
    busy = refusal(503, "Too many concurrent requests", Retry_After="1")
    with ScriptedServer(PLUGIN, replies(busy, refusal(429, "slow down"))) as server:
        started = time.monotonic()
        np.testing.assert_array_equal(encode(server.url, "ab"), numbered("ab"))
        assert time.monotonic() - started >= 1
        assert len(server.posted) == 3


def test_retries_end_with_their_time(encode: Encode) -> None:
    with ScriptedServer(PLUGIN, lambda data: refusal(503, "full")) as server:
        with pytest.raises(BusyError, match="full") as caught:
            encode(server.url, "a", retry_seconds=0.5)
        assert (caught.value.status, caught.value.retry_after) == (503, None)
        assert len(server.posted) > 1
    with ScriptedServer(PLUGIN, lambda data: refusal(503, "full", Retry_After="3600")) as server:
        with pytest.raises(BusyError) as caught:
            encode(server.url, "a", retry_seconds=60)
        assert caught.value.retry_after == 3600
        assert len(server.posted) == 1


def test_a_server_that_listens_later_is_waited_for(encode: Encode) -> None:
    with ScriptedServer(PLUGIN, vectors, listening=False) as server, ThreadPoolExecutor(1) as threads:
        with pytest.raises(ConnectionFailedError):
            encode(server.url, "a", retry_seconds=0)
        waiting = threads.submit(encode, server.url, "ab", retry_seconds=120)
        time.sleep(0.2)
        server.listen()
        np.testing.assert_array_equal(waiting.result(), numbered("ab"))


def test_a_connection_that_is_lost_once_is_an_accident(encode: Encode) -> None:
    with ScriptedServer(PLUGIN, replies(Reply(drop=True))) as server:
        np.testing.assert_array_equal(encode(server.url, "ab"), numbered("ab"))
    with ScriptedServer(PLUGIN, lambda data: Reply(drop=True)) as server:
        with pytest.raises(ConnectionFailedError):
            encode(server.url, "a")
        assert len(server.posted) == 2


def test_an_answer_that_is_too_late_is_not_wanted_again(encode: Encode) -> None:
    done = threading.Event()

    def late(data: Any) -> Reply:
        done.wait(60)
        return vectors(data)

    with ScriptedServer(PLUGIN, late) as server:
        try:
            with pytest.raises(RequestTimeoutError, match=r"0\.5 s"):
                encode(server.url, "a", timeout=0.5)
            # on a slow machine the server may not have read it yet
            assert len(server.posted) <= 1
        finally:
            done.set()


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (refusal(400, "too long", "data.texts[0]"), InvalidRequestError, r"data\.texts\[0\]: too long"),
        (refusal(404, "no such model", "model"), NotServedError, "^model: no such model$"),
        (Reply(403, b""), AuthenticationError, "the server answered 403"),
        (Reply(401, {"error": "Unauthorized"}), AuthenticationError, "Unauthorized"),
        (refusal(500, "it broke"), ServerError, "500: it broke"),
        (Reply(502, b"<html>bad gateway"), ServerError, "bad gateway"),
        (Reply(301, b"", {"location": "https://elsewhere"}), InvalidAnswerError, "redirects to https://elsewhere"),
        (Reply(200, b"<html>hello"), InvalidAnswerError, "X-Encoder-Shape"),
        (Reply(200, b"no gzip", {"content-encoding": "gzip"}), InvalidAnswerError, "decompressing"),
        (Reply(200, b"1234", {"x-encoder-shape": "2,2", "x-encoder-dtype": "int8"}), InvalidAnswerError, "2 vectors"),
        (Reply(204, b""), InvalidAnswerError, "204"),
    ],
)
def test_each_answer_has_its_error_and_is_not_sent_again(
    encode: Encode, reply: Reply, error: type[EncoderClientError], message: str
) -> None:
    with ScriptedServer(PLUGIN, lambda data: reply) as server:
        with pytest.raises(error, match=message) as caught:
            encode(server.url, "a")
        assert isinstance(caught.value, EncoderClientError)
        assert len(server.posted) == 1


def test_a_refusal_of_one_text_names_its_position_in_the_list(encode: Encode) -> None:
    def refused(data: Any) -> Reply:
        if "bad" in data["texts"]:
            return refusal(400, "the text is bad", f"data.texts[{data['texts'].index('bad')}]")
        return vectors(data)

    texts = ["a"] * 40
    texts[17] = "bad"
    with ScriptedServer(PLUGIN, refused) as server:
        with pytest.raises(InvalidRequestError) as caught:
            encode(server.url, texts, batch_size=4)
        assert (caught.value.param, caught.value.status) == ("data.texts[17]", 400)
        assert str(caught.value) == "data.texts[17]: the text is bad"


def test_a_request_that_is_too_large_for_the_server_is_halved(encode: Encode) -> None:
    def small(data: Any) -> Reply:
        return refusal(413, "the body is too large", "body") if len(data["texts"]) > 3 else vectors(data)

    with ScriptedServer(PLUGIN, small) as server:
        np.testing.assert_array_equal(encode(server.url, TEXTS, batch_size=8), [numbered(text) for text in TEXTS])


@pytest.mark.parametrize(
    ("prefix", "behind"), [("", ""), ("", "/"), ("/search", ""), ("/search", "/"), ("/search", "/pooling")]
)
def test_the_address_may_have_a_path_and_a_slash(prefix: str, behind: str) -> None:
    with ScriptedServer(PLUGIN, vectors, prefix=prefix) as server:
        synchronous(server.url + behind, "a")
        assert [request.path for request in server.received] == [f"{prefix}/openapi.json", f"{prefix}/pooling"]


def test_headers_and_names_are_sent_with_every_request(encode: Encode) -> None:
    with ScriptedServer(PLUGIN, vectors) as server:
        encode(server.url, "a", api_key="secret", headers={"X-Tenant": "7"}, model="minilm", lora="legal")
        for request in server.received:
            headers = request.headers
            assert (headers["authorization"], headers["x-tenant"]) == ("Bearer secret", "7")
            assert headers["user-agent"].startswith("encoder-client/")
    with SentenceTransformer("http://x", api_key="secret") as model:
        assert "secret" not in repr(model.client.settings)


def test_the_password_of_an_address_is_sent_and_not_shown(encode: Encode) -> None:
    with ScriptedServer(PLUGIN, replies(refusal(500, "it broke"), Reply(drop=True), Reply(drop=True))) as server:
        url = server.url.replace("://", "://user:p%40ss@")
        for error in (ServerError, ConnectionFailedError):
            with pytest.raises(error) as caught:
                encode(url, "a")
            assert "p%40ss" not in str(caught.value)
        assert {request.headers["authorization"] for request in server.received} == {"Basic dXNlcjpwQHNz"}
    with SentenceTransformer(url) as model:
        assert "p%40ss" not in repr(model.client.settings)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificates.write(tmp_path_factory.mktemp("certificate"))


def test_a_certificate_authority_of_ones_own_is_trusted(encode: Encode, certificate: tuple[Path, Path]) -> None:
    with ScriptedServer(PLUGIN, vectors, tls=certificate) as server:
        np.testing.assert_array_equal(encode(server.url, "ab", ca=certificate[0]), numbered("ab"))
        with pytest.raises(ConnectionFailedError, match="certificate"):
            encode(server.url, "ab", retry_seconds=600)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"url": "minilm.demo.svc"}, "url"),
        ({"url": "ftp://minilm"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://minilm?x=1"}, "url"),
        ({"url": "http://minilm..svc"}, "url"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": None}, "timeout"),
        ({"headers": {"x-tenant": 1}}, "headers['x-tenant']"),
        ({"connect_timeout": -1}, "connect_timeout"),
        ({"retry_seconds": -1}, "retry_seconds"),
        ({"ca": "/no/such/file"}, "ca"),
        ({"api_key": "secret\n"}, "api_key"),
        ({"headers": {"x-tenant": "Zürich"}}, "headers['x-tenant']"),
    ],
)
def test_settings_are_checked_before_anything_is_sent(wrong: dict[str, Any], param: str) -> None:
    for kind in (SentenceTransformer, AsyncSentenceTransformer):
        with pytest.raises(ArgumentError) as caught:
            kind(**{"url": "http://minilm", **wrong})
        assert caught.value.param == param


def test_threads_share_a_client() -> None:
    with ScriptedServer(PLUGIN, vectors) as server, SentenceTransformer(server.url, concurrency=3) as model:
        lists = [[f"{number} {place}" for place in range(9)] for number in range(24)]
        with ThreadPoolExecutor(12) as threads:
            found = list(threads.map(lambda texts: model.encode(texts, batch_size=2), lists))
        for texts, array in zip(lists, found, strict=True):
            np.testing.assert_array_equal(array, [numbered(text) for text in texts])
        assert server.most_in_flight <= 3
        assert len(server.received) - len(server.posted) == 1


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


async def test_a_cancelled_call_leaves_the_client_usable(gate: threading.Event) -> None:
    waiting = threading.Semaphore(0)

    def held(data: Any) -> Reply:
        if data["texts"] != ["free"]:
            waiting.release()
            gate.wait(60)
        return vectors(data)

    with ScriptedServer(PLUGIN, held) as server:
        async with AsyncSentenceTransformer(server.url, concurrency=2) as model:
            for _ in range(3):
                call = asyncio.create_task(model.encode(TEXTS, batch_size=4))
                for _ in range(2):
                    assert await asyncio.to_thread(waiting.acquire, timeout=60)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            # as many at once as the pool has connections
            found = await asyncio.gather(*(model.encode("free") for _ in range(4)))
        np.testing.assert_array_equal(found, [numbered("free")] * 4)


def test_the_first_error_ends_a_call_and_nothing_more_is_sent(encode: Encode) -> None:
    with ScriptedServer(PLUGIN, lambda data: refusal(500, "it broke")) as server:
        with pytest.raises(ServerError):
            encode(server.url, ["a"] * 1000, batch_size=1, concurrency=2)
        assert len(server.posted) <= 4


def test_a_closed_client_sends_nothing() -> None:
    with ScriptedServer(PLUGIN, vectors) as server:
        model = SentenceTransformer(server.url)
        model.encode("a")
        model.close()
        with pytest.raises(RuntimeError, match="closed"):
            model.encode("a")


# of connections whose event loop ended before they were closed
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_each_event_loop_has_connections_of_its_own() -> None:
    with ScriptedServer(PLUGIN, vectors) as server:
        model = AsyncSentenceTransformer(server.url)

        async def several() -> None:
            # the others wait for the description that the first one reads
            await asyncio.gather(*(model.encode(TEXTS[:2]) for _ in range(3)))

        for _ in range(4):
            asyncio.run(several())
        # those of loops that have ended are not kept
        assert len(model.client._of_loops) == 1
        asyncio.run(model.aclose())
        with pytest.raises(RuntimeError, match="the client is closed"):
            asyncio.run(several())
    gc.collect()


async def test_a_pickled_model_is_one_with_connections_of_its_own() -> None:
    with ScriptedServer(PLUGIN, vectors) as server:
        with SentenceTransformer(server.url, api_key="secret", truncate_dim=2) as model:
            model.encode("a")
            copied = pickle.loads(pickle.dumps(model))
        with copied:
            np.testing.assert_array_equal(copied.encode("b"), numbered("b"))
        async with pickle.loads(pickle.dumps(AsyncSentenceTransformer(server.url, api_key="secret"))) as awaited:
            np.testing.assert_array_equal(await awaited.encode("c"), numbered("c"))
        assert server.posted[1].data["dimensions"] == 2
        assert {request.headers["authorization"] for request in server.posted} == {"Bearer secret"}
        assert len({request.port for request in server.posted}) == 3


def encoded_by_a_child(model: SentenceTransformer, text: str) -> bool:
    """Return whether a process that is forked now gets the vector of a text."""

    def call() -> None:
        np.testing.assert_array_equal(model.encode(text), numbered(text))

    child = multiprocessing.get_context("fork").Process(target=call)
    child.start()
    child.join(10)
    child.kill()
    return child.exitcode == 0


# Python warns of forks beside threads, which is what callers do
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_read_the_answers_to_its_parent() -> None:
    with ScriptedServer(PLUGIN, vectors) as server, SentenceTransformer(server.url) as model:
        model.encode("parent")
        assert encoded_by_a_child(model, "child")
        np.testing.assert_array_equal(model.encode("again"), numbered("again"))
        first, forked, again = [request.port for request in server.posted]
        assert forked != first == again


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_the_threads_of_its_parent(gate: threading.Event) -> None:
    held = threading.Event()

    def handle(data: Any) -> Reply:
        if data["texts"] == ["held"]:
            held.set()
            gate.wait(60)
        return vectors(data)

    with (
        ScriptedServer(PLUGIN, handle) as server,
        SentenceTransformer(server.url, concurrency=1) as model,
        ThreadPoolExecutor(1) as threads,
    ):
        waiting = threads.submit(model.encode, "held")
        assert held.wait(60)
        encoded = encoded_by_a_child(model, "child")
        gate.set()
        np.testing.assert_array_equal(waiting.result(), numbered("held"))
    assert encoded
