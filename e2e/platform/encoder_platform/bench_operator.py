"""The operator on a real API server with many EncoderModels: memory, cold start, latency of an edit, writes while idle.

No pod runs: models are copies of one that is served, and what is made anew stays with its prep Jobs. Beside each number is that
of a bare operator on Kopf that only annotates EncoderModels, in the same run on the same API server.

Environment: ENCODER_BENCH_MODELS (JSON, [1000, 5000]), ENCODER_BENCH_AT_ONCE (1000), ENCODER_BENCH_IDLE_MINUTES (10).
"""

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

from encoder_platform import manifests, plane
from encoder_platform.bulk import MODELS, Bulk, Pattern, connected
from encoder_platform.operator_process import OperatorProcess, operator_process
from encoder_platform.plane import Plane
from encoder_platform.scene import Scene
from encoder_platform.stand_in import StandIn

NAMESPACE, NEW = "bench", "bench-new"
EDITS, MAX_PREPS = 200, 4


def run() -> None:
    """Measure, and print a table."""
    sizes = json.loads(os.environ.get("ENCODER_BENCH_MODELS", "[1000, 5000]"))
    at_once = int(os.environ.get("ENCODER_BENCH_AT_ONCE", "1000"))
    minutes = float(os.environ.get("ENCODER_BENCH_IDLE_MINUTES", "10"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-operator")))
        # copied pods have their gates open already
        found = stack.enter_context(plane.running(folder, values=("gatePolicy.enabled=false",)))
        operator = stack.enter_context(
            operator_process(
                found.kube,
                folder,
                {"ENCODER_MAX_PREPS": str(MAX_PREPS), "ENCODER_MAX_PREPS_PER_NAMESPACE": str(MAX_PREPS)},
            )
        )
        _serve_one(found, operator)
        # from here on only the operator is measured: nobody else reacts to anything
        found.control.stop_controllers()
        asyncio.run(_measure(found, operator, sizes, minutes, at_once))


def _serve_one(found: Plane, operator: OperatorProcess) -> None:
    stand_in = StandIn(found.kube)
    stand_in.furnish()
    for namespace in (NAMESPACE, NEW):
        found.kube.apply(manifests.namespace(namespace))
        found.kube.apply(manifests.claim("artifacts", namespace))
    scene = Scene(NAMESPACE, found.kube)
    operator.start()
    operator.wait_ready()
    print(f"{'idle':44s} {operator.resident():7.1f} MiB", flush=True)
    with stand_in.running():
        scene.apply_model("pattern")
        scene.wait_current("Ready", "pattern", seconds=120)
    operator.stop()


async def _measure(found: Plane, operator: OperatorProcess, sizes: list[int], minutes: float, at_once: int) -> None:
    async with connected(found.control.kubeconfig) as bulk:
        pattern = await Pattern.read(bulk, NAMESPACE, "pattern")
        made = 0
        for size in sizes:
            begun = time.monotonic()
            await bulk.every(pattern.copy(bulk, NAMESPACE, f"m{number:05d}") for number in range(made, size))
            print(f"\n{size} EncoderModels with their children ({time.monotonic() - begun:.0f} s to make)", flush=True)
            made = size
            await _ours(bulk, operator, size, minutes if size == sizes[0] else 0)
            await _bare(found, bulk, size)
        operator.start()
        operator.wait_ready()
        await _at_once(bulk, operator, at_once)


async def _ours(bulk: Bulk, operator: OperatorProcess, size: int, minutes: float) -> None:
    # the first start may repair what the copies have not got quite right
    operator.start()
    await _settled(operator, size)
    repaired = _writes(operator)
    operator.stop()
    begun = time.monotonic()
    operator.start()
    await _settled(operator, size)
    took, used = _last_reconcile(operator) - begun, _processor(operator.process.pid)
    print(
        f"  {'cold start to all reconciled':42s} {took:7.1f} s    ({used:.1f} s of a processor, {_reconciles(operator):.0f} reconciles)"
    )
    print(f"  {'writes at the first start, at the second':42s} {repaired:7.0f}, {_writes(operator):.0f}")
    print(f"  {'resident':42s} {operator.resident():7.1f} MiB  (highest {_highest(operator.process.pid):.1f})")
    await _edits(bulk, operator, size)
    if minutes:
        await asyncio.sleep(10)
        before, since = _writes(operator), time.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(operator.watch_for_its_end(), minutes * 60)
        idle = (time.monotonic() - since) / 60
        print(f"  {f'writes in {idle:.1f} idle minutes':42s} {_writes(operator) - before:7.0f}")
        print(f"  {'resident after them':42s} {operator.resident():7.1f} MiB")
    operator.stop()


async def _edits(bulk: Bulk, operator: OperatorProcess, size: int) -> None:
    def shown(live: dict[str, object], generation: int) -> bool:
        status = live.get("status") or {}
        return bool(status.get("observedGeneration") == generation)  # type: ignore[attr-defined]

    root = f"{MODELS[0]}/namespaces/{NAMESPACE}/{MODELS[1]}"
    times = await _latencies(
        bulk, root, size, lambda i: {"spec": {"serving": {"replicas": 2 + i % 2}}}, shown, operator
    )
    print(f"  {'edit -> status, p50 / p99 / highest':42s} {_spread(times)}", flush=True)


async def _latencies(
    bulk: Bulk,
    root: str,
    size: int,
    change: Callable[[int], object],
    shown: Callable[[dict[str, object], int], bool],
    operator: OperatorProcess | None = None,
) -> list[float]:
    """Edit one model after the other, and time until a watch shows the answer; fail if the operator that gives it ends."""
    times: list[float] = []
    waiting: dict[str, tuple[int, asyncio.Event]] = {}

    async def watch() -> None:
        async for event in bulk.watch(root):
            live = event["object"]
            generation, seen = waiting.get(live["metadata"]["name"], (0, None))
            if seen is not None and shown(live, generation):
                seen.set()

    watching = [asyncio.create_task(watch())]
    if operator is not None:
        watching.append(asyncio.create_task(operator.watch_for_its_end()))
    await asyncio.sleep(1)
    for i in range(EDITS):
        name, seen = f"m{i * 7919 % size:05d}", asyncio.Event()
        begun = time.monotonic()
        waiting[name] = (10**9, seen)
        found = await bulk.send("PATCH", f"{root}/{name}", change(i), "application/merge-patch+json")
        waiting[name] = (found["metadata"]["generation"], seen)
        live = await bulk.send("GET", f"{root}/{name}")
        if not shown(live, found["metadata"]["generation"]):
            await _until(seen, *watching, seconds=60)
        times.append(time.monotonic() - begun)
        del waiting[name]
        await asyncio.sleep(0.05)
    for task in watching:
        task.cancel()
    return times


async def _bare(found: Plane, bulk: Bulk, size: int) -> None:
    mark = f"run-{size}"
    environment = {**os.environ, "KUBECONFIG": str(found.control.kubeconfig)}
    root = f"{MODELS[0]}/namespaces/{NAMESPACE}/{MODELS[1]}"

    def shown(live: dict[str, object], generation: int) -> bool:
        notes = live["metadata"].get("annotations") or {}  # type: ignore[attr-defined]
        return bool(notes.get("bare-kopf/seen") == f"{mark}-{generation}")

    touched: set[str] = set()
    all_touched = asyncio.Event()

    async def watch() -> None:
        async for event in bulk.watch(root):
            live = event["object"]
            if shown(live, live["metadata"]["generation"]):
                touched.add(live["metadata"]["name"])
            if len(touched) == size:
                all_touched.set()

    watching = asyncio.create_task(watch())
    await asyncio.sleep(1)
    async with _process([sys.executable, "-m", "encoder_platform.bare_kopf", mark], environment) as process:
        begun = time.monotonic()
        await _until(all_touched, watching)
        watching.cancel()
        used = _processor(process.pid)
        print(
            f"  {'bare Kopf: cold start to all touched':42s} {time.monotonic() - begun:7.1f} s    ({used:.1f} s of a processor)"
        )
        await asyncio.sleep(5)
        print(f"  {'bare Kopf: resident':42s} {_resident(process.pid):7.1f} MiB  (highest {_highest(process.pid):.1f})")
        times = await _latencies(bulk, root, size, lambda i: {"spec": {"serving": {"replicas": 4 + i % 2}}}, shown)
        print(f"  {'bare Kopf: edit -> touched':42s} {_spread(times)}", flush=True)


async def _at_once(bulk: Bulk, operator: OperatorProcess, number: int) -> None:
    """Create many at once, and watch how many prep Jobs there are at any time; each ends when it is seen."""
    running: set[str] = set()
    started: set[str] = set()
    shown: set[str] = set()
    most = 0
    ends: set[asyncio.Task[object]] = set()
    all_shown, all_started = asyncio.Event(), asyncio.Event()

    async def jobs() -> None:
        nonlocal most
        async for event in bulk.watch(f"apis/batch/v1/namespaces/{NEW}/jobs"):
            job = event["object"]
            name = job["metadata"]["name"]
            ended = any(c["type"] == "Failed" for c in (job.get("status") or {}).get("conditions", []))
            if event["type"] == "ADDED":
                started.add(name)
                running.add(name)
                most = max(most, len(running))
                task = asyncio.create_task(_end_job(bulk, job))
                ends.add(task)
                task.add_done_callback(ends.discard)
            elif ended or event["type"] == "DELETED":
                running.discard(name)
            if len(started) == number:
                all_started.set()

    root = f"{MODELS[0]}/namespaces/{NEW}/{MODELS[1]}"

    async def models() -> None:
        async for event in bulk.watch(root):
            live = event["object"]
            if any(c["type"] == "ArtifactReady" for c in (live.get("status") or {}).get("conditions", [])):
                shown.add(live["metadata"]["name"])
            if len(shown) == number:
                all_shown.set()

    watching = [asyncio.create_task(watch()) for watch in (jobs, models, operator.watch_for_its_end)]
    await asyncio.sleep(1)
    begun = time.monotonic()
    bodies = [manifests.encoder_model(f"n{i:04d}", NEW, revision=f"{i:040x}") for i in range(number)]
    await bulk.every(bulk.send("POST", root, body) for body in bodies)
    created = time.monotonic() - begun
    await _until(all_shown, *watching)
    print(
        f"\n{number} EncoderModels created at once (creating took {created:.1f} s), prep Jobs that end as soon as seen"
    )
    print(f"  {'ArtifactReady shown on all':42s} {time.monotonic() - begun:7.1f} s", flush=True)
    await _until(all_started, *watching)
    print(f"  {'prep Job started for all':42s} {time.monotonic() - begun:7.1f} s")
    print(f"  {f'most prep Jobs at once (limit {MAX_PREPS})':42s} {most:7d}", flush=True)
    for task in (*watching, *ends):
        task.cancel()


async def _end_job(bulk: Bulk, job: dict[str, object]) -> None:
    meta = job["metadata"]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now, "reason": "BackoffLimitExceeded", "message": ""}
        for kind in ("FailureTarget", "Failed")
    ]
    # no pod ran, so there is no report: a Job that failed is final, one that succeeded without a word would be made again
    status = {"startTime": now, "failed": 1, "conditions": conditions}
    path = f"apis/batch/v1/namespaces/{NEW}/jobs/{meta['name']}/status"  # type: ignore[index]
    await bulk.send("PATCH", path, {"status": status}, "application/merge-patch+json")


async def _until(happened: asyncio.Event, *watching: asyncio.Task[None], seconds: float = 1800) -> None:
    """Wait for the events of a watch; a watch, or an operator, that ends before they have come is an error."""
    waiting = asyncio.create_task(happened.wait())
    done, _ = await asyncio.wait((waiting, *watching), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not happened.is_set():
        for task in done:
            task.result()
        raise AssertionError(f"a watch has ended, or nothing happened in {seconds:.0f} s")


async def _settled(operator: OperatorProcess, size: int) -> None:
    """Wait until every model was looked at and nothing is looked at any more."""
    deadline = time.monotonic() + 1800
    quiet, last = 0.0, -1.0
    while time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        operator.check_alive()
        reconciles = _reconciles(operator)
        quiet = quiet + 0.5 if reconciles == last else 0.0
        if reconciles != last:
            last = reconciles
            _LAST_LOOK[operator.process.pid] = time.monotonic()
        if reconciles >= size and quiet >= 5:
            return
    raise AssertionError(f"the operator does not come to rest: {last:.0f} reconciles")


_LAST_LOOK: dict[int, float] = {}


def _last_reconcile(operator: OperatorProcess) -> float:
    return _LAST_LOOK[operator.process.pid]


def _sum(operator: OperatorProcess, pattern: str) -> float:
    if operator.port is None:
        return 0.0
    text = operator.get("metrics")[1]
    return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", text, re.MULTILINE))


def _reconciles(operator: OperatorProcess) -> float:
    return _sum(operator, r"encoder_reconcile_total\{.*\}")


def _writes(operator: OperatorProcess) -> float:
    return _sum(operator, r"encoder_api_requests_total\{.*verb=\"(?:apply|patch|create|delete|update)\".*\}")


def _field(pid: int, name: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(name))) / 1024


def _resident(pid: int) -> float:
    return _field(pid, "VmRSS")


def _highest(pid: int) -> float:
    return _field(pid, "VmHWM")


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _spread(times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=100)
    return f"{cuts[49] * 1000:5.0f} / {cuts[98] * 1000:.0f} / {max(times) * 1000:.0f} ms"


@asynccontextmanager
async def _process(command: list[str], environment: dict[str, str]) -> AsyncIterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
