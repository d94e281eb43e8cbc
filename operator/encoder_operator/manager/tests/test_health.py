"""The probes and metrics of the operator, on every family of addresses that the machine has."""

from __future__ import annotations

import socket

import aiohttp

from encoder_operator.manager import health


def _free_port() -> tuple[int, list[str]]:
    """Return a port that is free on every loopback address of this machine, and those addresses."""
    with socket.socket() as ipv4:
        ipv4.bind(("127.0.0.1", 0))
        port: int = ipv4.getsockname()[1]
        try:
            with socket.socket(socket.AF_INET6) as ipv6:
                ipv6.bind(("::1", port))
        except OSError:
            return port, ["127.0.0.1"]
    return port, ["127.0.0.1", "[::1]"]


async def test_it_is_reached_over_ipv4_and_ipv6() -> None:
    ready: set[str] = set()
    port, addresses = _free_port()
    async with health.serve_health(port, lambda: bool(ready)) as found, aiohttp.ClientSession() as client:
        assert found == port
        for address in addresses:
            ready.clear()
            for path, status in (("healthz", 200), ("readyz", 503)):
                async with client.get(f"http://{address}:{port}/{path}") as answer:
                    assert answer.status == status
            ready.add("watches")
            async with client.get(f"http://{address}:{port}/readyz") as answer:
                assert answer.status == 200
            async with client.get(f"http://{address}:{port}/metrics") as answer:
                assert "encoder_preps" in await answer.text()
