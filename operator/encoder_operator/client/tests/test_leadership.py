"""Nothing is written without the lease, and nothing after it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, Context, User

from encoder_operator.client.client import Client
from encoder_operator.client.errors import NotLeader
from encoder_operator.client.leadership import Leadership
from encoder_operator.tests.fake_cluster import FakeCluster


class Clock:
    """The time that a test sets."""

    time = 1000.0

    def __call__(self) -> float:
        return self.time


# never held or lost, ended at this moment, and ended while the machine was suspended
@pytest.mark.parametrize("until", [-math.inf, 0.0, -3600.0])
async def test_nothing_is_sent_without_the_lease(until: float) -> None:
    leadership = Leadership(lambda: 0.0)
    leadership.grant(until)
    fake = FakeCluster()
    cluster = Client(config=FakeCluster.config(), transport=fake, leadership=leadership)
    live = {"kind": "Job", "metadata": {"name": "j", "namespace": "demo"}}
    for write in (
        lambda: cluster.apply(live),
        lambda: cluster.create(live),
        lambda: cluster.delete("Job", "demo", "j"),
        lambda: cluster.replace_status("demo", "m", {"uid": "1"}, {}),
        lambda: cluster.set_pod_conditions("demo", "p", "1", []),
        lambda: cluster.create_event({"metadata": {"name": "e", "namespace": "demo"}}),
    ):
        with pytest.raises(NotLeader, match="not sent"):
            await write()
    assert fake.writes == []


class Slow(FakeCluster):
    """Takes some seconds for each request; while it does, the clock of the lease goes on to a later time."""

    def __init__(self, seconds: float, clock: Clock, later: float, renewed: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.seconds, self.clock, self.later, self.renewed = seconds, clock, later, renewed

    async def handle_async_request(self, request: Any) -> Any:
        self.renewed()
        self.clock.time = self.later
        await asyncio.sleep(self.seconds)
        return await super().handle_async_request(request)


async def test_a_write_that_takes_longer_than_the_lease_is_given_up() -> None:
    clock = Clock()
    leadership = Leadership(clock)
    leadership.grant(1000.05)
    fake = Slow(30, clock, 1000.05)
    cluster = Client(config=FakeCluster.config(), transport=fake, leadership=leadership)
    with pytest.raises(NotLeader, match="aborted"):
        await cluster.delete("Job", "demo", "j")
    assert fake.writes == []


async def test_a_write_may_take_longer_than_the_lease_had_left_where_that_is_renewed() -> None:
    clock = Clock()
    leadership = Leadership(clock)
    leadership.grant(1000.05)
    fake = Slow(0.3, clock, 1005, lambda: leadership.grant(1005.05))
    fake.put("jobs", {"metadata": {"name": "j", "namespace": "demo"}})
    cluster = Client(config=FakeCluster.config(), transport=fake, leadership=leadership)
    await cluster.delete("Job", "demo", "j")
    assert fake.writes == ["DELETE jobs j"]


class Frozen(logging.Handler):
    """Stops the whole process for some time where httpcore logs a step."""

    def __init__(self, step: str, seconds: float) -> None:
        super().__init__()
        self.step, self.seconds = step, seconds

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self.step):
            time.sleep(self.seconds)


@pytest.mark.parametrize(
    ("logger", "step"), [("connection", "connect_tcp.complete"), ("http11", "send_request_headers.complete")]
)
async def test_a_process_that_is_frozen_while_it_writes_does_not_send_the_rest(
    logger: str, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(await reader.read())
        writer.close()

    async with await asyncio.start_server(receive, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        url = Cluster(server=f"http://127.0.0.1:{address[1]}")
        config = SingleConfig(context_name="c", context=Context(cluster="c", user="u"), cluster=url, user=User())
        leadership = Leadership()
        leadership.grant(leadership.now() + 0.3)
        cluster = Client(config=config, leadership=leadership)
        name = f"httpcore2.{logger}"
        frozen = Frozen(step, 0.4)
        logging.getLogger(name).addHandler(frozen)
        try:
            with caplog.at_level(logging.DEBUG, name), pytest.raises(NotLeader, match="create Job: aborted"):
                await cluster.create({"kind": "Job", "metadata": {"name": "j", "namespace": "demo"}})
        finally:
            logging.getLogger(name).removeHandler(frozen)
            await cluster.close()
        _, _, body = (await received.get()).partition(b"\r\n\r\n")
    assert body == b""
