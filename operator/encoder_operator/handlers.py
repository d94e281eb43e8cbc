"""Kopf's part: watches, and nothing else. Every handler only says which EncoderModel to look at.

Only ``on.event`` is used: it leaves no annotation and no finalizer on any object, and needs no write of Kopf's own.
"""

from __future__ import annotations

from typing import Any

import kopf

from encoder_operator import names
from encoder_operator.wakeups import Key, WakeUps
from encoder_operator.watching import Watchdog

_CHILDREN = (("", "v1", "pods"), ("", "v1", "services"), ("batch", "v1", "jobs"), ("apps", "v1", "deployments"))


def registry(wakeups: WakeUps, watchdog: Watchdog) -> kopf.OperatorRegistry:
    """Return Kopf's handlers."""
    # not the default registry: that one would log in with whichever Kubernetes client is installed
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found)
    def login(**fields: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**fields) or kopf.login_with_kubeconfig(**fields)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, id="model_changed", registry=found)
    async def model_changed(event: Any, name: str, namespace: str | None, meta: Any, **_: Any) -> None:
        key = Key(namespace or "", name)
        if event["type"] == "DELETED":
            watchdog.gone(key)
            wakeups.forget(key)
        else:
            watchdog.seen(key, meta["resourceVersion"])
            wakeups.wake(key)

    async def child_changed(namespace: str | None, labels: Any, **_: Any) -> None:
        wakeups.wake(Key(namespace or "", labels[names.MODEL]))

    for group, version, plural in _CHILDREN:
        labels: Any = {names.MODEL: kopf.PRESENT}
        kopf.on.event(group, version, plural, labels=labels, id=f"{plural}_changed", registry=found)(child_changed)
    return found


def settings() -> kopf.OperatorSettings:
    """Return Kopf's settings: server-side selectors, nothing posted, nothing scanned, a quick end."""
    found = kopf.OperatorSettings()
    for group, version, plural in _CHILDREN:
        found.watching.label_selectors[group, version, plural] = names.MODEL
    found.watching.chunk_size = 500
    found.watching.server_timeout = 300
    found.watching.client_timeout = 320
    found.posting.enabled = False
    found.scanning.disabled = True
    found.peering.standalone = True
    found.queueing.exit_timeout = 1.0
    found.queueing.idle_timeout = 1.0
    found.process.ultimate_exiting_timeout = 4.5
    return found
