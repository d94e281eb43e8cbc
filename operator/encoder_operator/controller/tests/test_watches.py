from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from typing import Any

import pytest

from encoder_operator.api.v1alpha1 import LabelSelector
from encoder_operator.client.client import Client
from encoder_operator.controller import watches
from encoder_operator.controller.namespaces import Namespaces, SelectedNamespaces
from encoder_operator.controller.watch_progress import WATCHED_KINDS, WatchProgress
from encoder_operator.controller.workqueue import WorkQueue
from encoder_operator.naming import NamespacedName
from encoder_operator.tests.fake_cluster import FakeCluster
from encoder_operator.tests.harness import SETTINGS


class RecordingQueue(WorkQueue):
    """Records the enqueued keys and reconciles nothing."""

    def __init__(self) -> None:
        self.keys: list[NamespacedName] = []

    def enqueue(self, key: NamespacedName, after: float = 0.0) -> None:
        self.keys.append(key)


CLIENT = Client(config=FakeCluster.config(), transport=FakeCluster())
ALL = Namespaces(CLIENT, SETTINGS)


def handlers_of(queue: WorkQueue, progress: WatchProgress, namespaces: Namespaces = ALL) -> dict[str, Any]:
    """The handlers by their names, without their fields."""
    found = watches.kopf_registry(queue, progress, namespaces)._watching.get_all_handlers()
    return {str(entry.id).split("/")[0]: entry.fn for entry in found}


@pytest.mark.complaint(22)
@pytest.mark.parametrize("plural", ["pods", "jobs", "deployments", "services"])
def test_every_watch_of_children_is_filtered_by_the_api_server(plural: str) -> None:
    selectors: Any = watches.kopf_settings().watching.label_selectors
    assert {selector.any_name: value for selector, value in selectors.items()}[plural] == "encoders.dev/model"


def test_kopf_posts_and_scans_nothing() -> None:
    found = watches.kopf_settings()
    assert found.posting.enabled is False
    assert found.scanning.disabled is True


def test_kopf_retries_requests_without_end_with_bounded_delays() -> None:
    pauses: Any = watches.kopf_settings().networking.error_backoffs
    # every request begins anew
    for _ in range(2):
        found = list(itertools.islice(pauses, 1000))
        assert 0.25 <= found[0] <= 0.5
        assert max(found) <= 8
        assert len(set(found[4:])) > 900


def test_a_page_of_a_list_is_small_because_kopf_has_a_task_for_each_of_its_objects() -> None:
    # with 100, a thousand models needed 7 MiB more
    assert watches.kopf_settings().watching.chunk_size == 20


def test_handlers_leave_no_trace_on_objects() -> None:
    registry = watches.kopf_registry(RecordingQueue(), WatchProgress(), ALL)
    assert len(registry._watching.get_all_handlers()) == 5
    assert list(registry._changing.get_all_handlers()) == []
    assert list(registry._spawning.get_all_handlers()) == []


async def test_events_enqueue_their_model_unless_it_was_read_since() -> None:
    woken, progress = RecordingQueue(), WatchProgress()
    functions = handlers_of(woken, progress)
    meta = {"namespace": "n", "name": "m", "resourceVersion": "7"}
    changed: dict[str, Any] = {"event": {"type": "MODIFIED"}, "meta": meta}
    await functions["model_changed"](**changed)
    pod = {"meta": meta | {"name": "other-1", "labels": {"encoders.dev/model": "other"}}}
    await functions["pods_changed"](**pod)
    progress.record_read(NamespacedName("n", "other"), dict.fromkeys(WATCHED_KINDS, "7"))
    await functions["pods_changed"](**pod)
    assert woken.keys == [NamespacedName("n", "m"), NamespacedName("n", "other")]


async def test_events_of_a_namespace_that_is_not_served_leave_no_trace() -> None:
    queue, progress = RecordingQueue(), WatchProgress()
    selector = LabelSelector(match_labels={"encoders": "yes"})
    settings = SETTINGS.model_copy(update={"namespace_selector": selector})
    functions = handlers_of(queue, progress, SelectedNamespaces(CLIENT, settings))
    namespace: dict[str, Any] = {"name": "n", "resourceVersion": "5", "labels": {"encoders": "yes"}}
    key, meta = NamespacedName("n", "m"), {"namespace": "n", "name": "m", "resourceVersion": "7"}
    await functions["model_changed"](meta=meta)
    assert (queue.keys, progress.has_unread_events(key)) == ([], False)
    await functions["namespace_changed"](event={"type": None}, meta=namespace)
    await functions["model_changed"](meta=meta)
    assert queue.keys == [key]
    await functions["namespace_changed"](event={"type": "DELETED"}, meta=namespace | {"resourceVersion": "8"})
    pod = {"meta": meta | {"name": "other-1", "labels": {"encoders.dev/model": "other"}}}
    await functions["pods_changed"](**pod)
    assert queue.keys == [key]
    # nothing else has the right to watch namespaces
    assert "namespace_changed" not in handlers_of(queue, progress)


async def test_a_model_deleted_during_a_reconcile_is_reconciled_once_more() -> None:
    progress, key, looks = WatchProgress(), NamespacedName("n", "m"), 0
    read, deleted, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def look(found: NamespacedName) -> None:
        nonlocal looks
        looks += 1
        if looks > 1:
            return again.set()
        progress.record_read(found, dict.fromkeys(WATCHED_KINDS, "7"))
        read.set()
        await deleted.wait()

    queue = WorkQueue(look, concurrency=1, has_news=progress.has_unread_events)
    queue.enqueue(key, after=0)
    async with asyncio.timeout(5):
        await read.wait()
        meta = {"namespace": "n", "name": "m", "resourceVersion": "9"}
        await handlers_of(queue, progress)["model_changed"](event={"type": "DELETED"}, meta=meta)
        deleted.set()
        await again.wait()
    await queue.close()


def test_the_operator_imports_neither_an_engine_nor_typed_kubernetes_models() -> None:
    program = "import sys, json, encoder_operator.manager.manager; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "vllm", "transformers", "numpy", "encoder_kernels"} & set(json.loads(done.stdout))


async def test_kopf_remembers_no_object_and_copies_none() -> None:
    memories = watches.NullMemories()
    for uid in ("1", "2"):
        await memories.recall({"metadata": {"uid": uid}}, noticed_by_listing=True)
    assert list(memories.iter_all_memories()) == []
    persistence = watches.kopf_settings().persistence
    body: Any = {"spec": {"large": "x" * 100}}
    assert persistence.diffbase_storage.build(body=body) == {}
    essence: Any = {"a": 1}
    assert persistence.progress_storage.clear(essence=essence) is essence
