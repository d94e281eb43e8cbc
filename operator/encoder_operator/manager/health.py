"""HTTP server for /healthz and /readyz (kubelet) and /metrics (Prometheus)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from encoder_operator.metrics import metrics


@asynccontextmanager
async def serve_health(port: int, ready: Callable[[], bool]) -> AsyncIterator[int]:
    """Serve until the body ends. Yields the port."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readiness(_: web.Request) -> web.Response:
        return web.Response(text="ok\n" if ready() else "starting\n", status=200 if ready() else 503)

    async def numbers(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes([web.get("/healthz", health), web.get("/readyz", readiness), web.get("/metrics", numbers)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, None, port)
    await site.start()
    try:
        # IPv4 and IPv6 have separate sockets, and with port 0 also different ports; the shorter address is the IPv4 one
        yield min(runner.addresses, key=len)[1]
    finally:
        await runner.cleanup()
