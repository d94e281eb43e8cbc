from __future__ import annotations

import aiohttp
import pytest

from encoder_operator.client.client import Client
from encoder_operator.controller.reconciler import Reconciler
from encoder_operator.controller.watch_progress import WATCHED_KINDS, WatchProgress
from encoder_operator.manager import health
from encoder_operator.naming import NamespacedName
from encoder_operator.tests.fake_cluster import FakeCluster
from encoder_operator.tests.harness import SETTINGS, Harness

KEY = NamespacedName("demo", "minilm")


def read_at(version: str) -> dict[str, str]:
    return dict.fromkeys(WATCHED_KINDS, version)


def test_an_event_that_was_already_read_needs_no_reconcile() -> None:
    found = WatchProgress()
    assert found.record_event(KEY, "Pod", "5")
    found.record_read(KEY, read_at("7"))
    assert not found.record_event(KEY, "Pod", "7")
    assert found.record_event(KEY, "Pod", "8")
    assert found.record_event(NamespacedName("demo", "other"), "Pod", "6")


async def test_the_event_of_a_status_that_a_reconcile_wrote_needs_no_reconcile() -> None:
    harness, found = Harness(), WatchProgress()
    client = Client(config=FakeCluster.config(), transport=harness.fake)
    await Reconciler(client, SETTINGS, watch_progress=found).reconcile(*KEY)
    assert harness.fake.writes[-1] == "PATCH encodermodels/status minilm"
    assert not found.record_event(KEY, "EncoderModel", harness.live["metadata"]["resourceVersion"])


def test_the_event_of_an_own_write_needs_no_reconcile_and_a_later_change_does() -> None:
    found = WatchProgress()
    found.record_read(KEY, read_at("7"))
    found.record_write(KEY, "EncoderModel", "9")
    assert not found.record_event(KEY, "EncoderModel", "9")
    assert found.record_event(KEY, "Pod", "9")
    assert found.record_event(KEY, "EncoderModel", "10")


@pytest.mark.parametrize("written", WATCHED_KINDS)
def test_a_write_of_one_kind_says_nothing_about_the_others(written: str) -> None:
    found = WatchProgress()
    versions = {kind: 10 * number for number, kind in enumerate(WATCHED_KINDS, start=1)}
    found.record_read(KEY, {kind: str(version) for kind, version in versions.items()})
    found.record_write(KEY, written, str(versions[written] + 5))
    versions[written] += 5
    for kind, version in versions.items():
        assert not found.record_event(KEY, kind, str(version))
        assert found.record_event(KEY, kind, str(version + 1))


def test_a_write_without_a_read_or_a_version_hides_no_event() -> None:
    found = WatchProgress()
    # the model was forgotten while the write was sent
    found.record_write(KEY, "Pod", "9")
    assert found.record_event(KEY, "Pod", "9")
    found.record_read(KEY, read_at("9"))
    found.record_write(KEY, "Pod", "unknown")
    assert not found.record_event(KEY, "Pod", "9")
    assert found.record_event(KEY, "Pod", "10")


def test_an_event_with_an_invalid_version_is_read_by_the_next_reconcile() -> None:
    found = WatchProgress()
    assert found.record_event(KEY, "Pod", "unknown")
    assert found.has_unread_events(KEY)
    found.record_read(KEY, {})
    # it would be reconciled without end
    assert not found.has_unread_events(KEY)


def test_after_a_failed_reconcile_every_event_needs_a_reconcile() -> None:
    found = WatchProgress()
    found.record_read(KEY, read_at("7"))
    found.record_event(KEY, "Pod", "8")
    found.forget(KEY)
    # the retry of the failed reconcile follows anyway
    assert not found.has_unread_events(KEY)
    assert found.record_event(KEY, "Pod", "3")


def test_a_model_that_is_created_while_the_deletion_of_its_predecessor_is_read_stays_unread() -> None:
    found = WatchProgress()
    found.record_event(KEY, "EncoderModel", "8")
    before = found.unread_events(KEY)
    found.record_event(KEY, "EncoderModel", "9")
    found.forget_deleted(KEY, before)
    assert found.has_unread_events(KEY)
    found.forget_deleted(KEY, found.unread_events(KEY))
    assert not found.has_unread_events(KEY)


def test_a_model_that_a_read_did_not_find_is_none_of_those_that_a_resync_looks_for() -> None:
    found = WatchProgress()
    found.record_read(KEY, {"EncoderModel": "8", "Pod": "9"})
    assert found.models == {KEY}
    found.forget_deleted(KEY, found.unread_events(KEY))
    assert found.models == frozenset()
    # a model of the same name is a new one, whose events count
    assert found.record_event(KEY, "Pod", "9")


async def test_the_probes_of_an_operator_that_starts_and_of_one_that_is_ready() -> None:
    ready = False
    async with health.serve_health(0, lambda: ready) as port, aiohttp.ClientSession() as client:

        async def status(path: str) -> int:
            async with client.get(f"http://127.0.0.1:{port}/{path}") as answer:
                await answer.read()
                return answer.status

        assert (await status("healthz"), await status("readyz"), await status("metrics")) == (200, 503, 200)
        ready = True
        assert await status("readyz") == 200


def test_events_during_a_reconcile_count_only_if_it_has_not_read_them() -> None:
    found = WatchProgress()
    found.record_event(KEY, "Pod", "5")
    assert found.has_unread_events(KEY)
    found.record_read(KEY, read_at("5"))
    assert not found.has_unread_events(KEY)
    found.record_event(KEY, "Job", "6")
    found.record_event(KEY, "Pod", "9")
    found.record_read(KEY, read_at("7"))
    assert found.has_unread_events(KEY)
    found.record_read(KEY, read_at("9"))
    assert not found.has_unread_events(KEY)


def test_unread_events_of_a_forgotten_namespace_are_forgotten() -> None:
    progress = WatchProgress()
    for namespace in ("demo", "other"):
        for name in ("read", "new"):
            progress.record_event(NamespacedName(namespace, name), "Pod", "7")
        progress.record_read(NamespacedName(namespace, "read"), {"Pod": "5"})
    progress.forget_namespace("demo")
    assert progress.models == {NamespacedName("other", "read")}
    found = {key for name in ("read", "new") for key in (NamespacedName("demo", name), NamespacedName("other", name))}
    assert {key for key in found if progress.has_unread_events(key)} == {
        key for key in found if key.namespace == "other"
    }
