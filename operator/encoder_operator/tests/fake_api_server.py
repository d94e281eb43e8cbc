"""An API server on a socket with nothing in it, for the operator as a process: discovery, empty lists, watches that stay open, and faults."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Json = dict[str, Any]

_GROUPS = {
    "encoders.dev/v1alpha1": [("encodermodels", "EncoderModel")],
    "batch/v1": [("jobs", "Job")],
    "apps/v1": [("deployments", "Deployment"), ("controllerrevisions", "ControllerRevision")],
}
# Kopf begins nothing before it has found namespaces
_CORE = [("namespaces", "Namespace"), ("pods", "Pod"), ("services", "Service")]
# as in the operator's image
_PROGRAM = "import sys; sys.modules.update(kubernetes=None, rich=None); from encoder_operator.cli.main import main; sys.exit(main(['run']))"

Fault = Callable[[web.Request], web.Response | float | None]


class FakeApiServer:
    """What it is asked, and what goes wrong.

    Attributes:
        fault: asked about each request: an answer instead of its own, for how many seconds it says nothing, or None.
        asked: method, path and whether it is a watch, of each request.
        accepted: path and accepted type of each request.
        objects: what lists return, by plural.
        lease: the Lease, as it was put last.
        groups: the API groups that it serves.
    """

    def __init__(self) -> None:
        self.fault: Fault = lambda request: None
        self.asked: list[tuple[str, str, bool]] = []
        self.accepted: set[tuple[str, str]] = set()
        self.objects: dict[str, list[Json]] = {}
        self.lease: Json | None = None
        self.groups = dict(_GROUPS)
        self._watches: dict[str, web.StreamResponse] = {}
        self._puts = 0

    @property
    def watched(self) -> set[str]:
        """Return the plurals of which there is a watch now."""
        return set(self._watches)

    async def tell(self, plural: str, event: Json) -> None:
        """Send an event to the watch of a plural."""
        await self._watches[plural].write(json.dumps(event).encode() + b"\n")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        watch = "watch" in request.query
        self.asked.append((request.method, request.path, watch))
        self.accepted.add((request.path, request.headers.get("Accept", "")))
        fault = self.fault(request)
        if isinstance(fault, web.Response):
            return fault
        if fault is not None:
            await asyncio.sleep(fault)
        parts = request.path.strip("/").split("/")
        if parts == ["api"]:
            return web.json_response({"versions": ["v1"]})
        if parts == ["apis"]:
            return web.json_response({"groups": [_group(name) for name in self.groups]})
        if parts == ["api", "v1"]:
            return web.json_response({"resources": [_resource(*entry) for entry in _CORE]})
        if parts[0] == "apis" and len(parts) == 3:
            found = self.groups.get(f"{parts[1]}/{parts[2]}")
            return web.json_response({"resources": [_resource(*e) for e in found]}) if found else status(404)
        if "leases" in parts:
            return await self._leased(request)
        plural = parts[-1]
        if watch:
            return await self._watch(request, plural)
        # as the API server does, which has null items where a list of metadata is empty
        empty: list[Json] | None = None if "PartialObjectMetadataList" in request.headers["Accept"] else []
        return web.json_response({"items": self.objects.get(plural) or empty, "metadata": {"resourceVersion": "1"}})

    async def _leased(self, request: web.Request) -> web.Response:
        if request.method != "GET":
            self._puts += 1
            self.lease = await request.json()
            self.lease["metadata"]["resourceVersion"] = str(self._puts)
        return web.json_response(self.lease) if self.lease else status(404)

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self._watches[plural] = response
        try:
            await asyncio.sleep(3600)
        finally:
            self._watches.pop(plural, None)
        return response


class Operator:
    """The operator as a process.

    Attributes:
        process: it.
        log: the file that it writes to.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def lines(self) -> list[Json]:
        """Return what it has logged; a line that is no JSON comes as {"event": line}."""
        return [_parsed(line) for line in self.log.read_text().splitlines()]

    def said(self, event: str) -> list[Json]:
        """Return its lines with this event."""
        return [line for line in self.lines if line["event"] == event]

    @property
    def traced(self) -> list[Json]:
        """Return what looks like a stack trace."""
        return [line for line in self.lines if "exception" in line or line["event"].startswith(("Traceback", "  File"))]

    async def ended(self, seconds: float) -> int:
        """Return its exit code once it has ended, by itself."""
        return await asyncio.wait_for(self.process.wait(), seconds)


@asynccontextmanager
async def serving(fake: FakeApiServer, folder: Path) -> AsyncIterator[Path]:
    """Serve on a free port; yields a kubeconfig."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", fake.answer)
    server = TestServer(application)
    await server.start_server(shutdown_timeout=0.1)
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": str(server.make_url("/")).rstrip("/")}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    try:
        yield path
    finally:
        await server.close()


@asynccontextmanager
async def operator(kubeconfig: Path, first: str = "", **environment: str) -> AsyncIterator[Operator]:
    """Run the operator while the body runs, after the statements of ``first``."""
    log = kubeconfig.with_name("operator.log")
    own = {"KUBECONFIG": str(kubeconfig), "ENCODER_PORT": "0", "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-c", f"{first}\n{_PROGRAM}"]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, env={"PATH": "/usr/bin", **own, **environment}, stdout=output, stderr=output
        )
    try:
        yield Operator(process, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until(what: Callable[[], Any], seconds: float = 20) -> Any:
    """Wait until something is so."""
    async with asyncio.timeout(seconds):
        while not (found := what()):
            await asyncio.sleep(0.02)
    return found


def status(code: int, message: str = "a fault", **headers: str) -> web.Response:
    """Return an answer as the API server words its errors."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
    # without a charset, as the API server does: lightkube knows an error by exactly this
    return web.Response(body=json.dumps(body), status=code, headers={"Content-Type": "application/json", **headers})


def _group(name: str) -> Json:
    group, version = name.split("/")
    described = {"groupVersion": name, "version": version}
    return {"name": group, "versions": [described], "preferredVersion": described}


def _resource(plural: str, kind: str) -> Json:
    verbs = ["get", "list", "watch", "create", "patch", "delete"]
    return {"name": plural, "kind": kind, "singularName": kind.lower(), "namespaced": True, "verbs": verbs}


def _parsed(line: str) -> Json:
    try:
        found = json.loads(line)
    except ValueError:
        return {"event": line}
    return found if isinstance(found, dict) else {"event": line}
