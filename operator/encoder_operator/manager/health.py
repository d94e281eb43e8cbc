"""One small HTTP server: /healthz and /readyz for the kubelet, /metrics for Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from encoder_operator.controller.watch_progress import WatchProgress
from encoder_operator.metrics import metrics


@asynccontextmanager
async def serve_health(port: int, watch_progress: WatchProgress, ready: Callable[[], bool]) -> AsyncIterator[int]:
    """Serve the probes while the body runs; yields the port."""
    # an operator whose watch is silent is restarted soon: what it says until then has to be true at every moment
    metrics.BEHIND.set_function(lambda: len(watch_progress.behind))

    async def health(_: web.Request) -> web.Response:
        behind = watch_progress.behind
        text = f"silent for too long: the watch of {', '.join(behind)}" if behind else "ok"
        return web.Response(text=text + "\n", status=503 if behind else 200)

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
        # IPv4 and IPv6 have a socket each, and where any free port will do also a port each: the shorter address is IPv4's
        yield min(runner.addresses, key=len)[1]
    finally:
        await runner.cleanup()
