from __future__ import annotations

from encoder_operator.tests.harness import SETTINGS, Harness, failing_report


async def test_a_mode_that_is_not_allowed_opens_no_gate() -> None:
    harness = Harness()
    harness.operator_settings = SETTINGS.model_copy(update={"weakest_parity_mode": "Enforce"})
    harness.reconciler = harness.operator()
    harness.parity = failing_report
    harness.edit(lambda live: live["spec"]["parity"].update(mode="Enforce") if "parity" in live["spec"] else None)
    # a pod whose comparison is still to come
    await harness.reconcile()
    harness.jobs()
    await harness.reconcile()
    harness.deployment()
    assert harness.fake.of("pods", component="serving")
    harness.edit(lambda live: live["spec"].update(parity={"mode": "Disabled"}))
    for _ in range(3):
        await harness.reconcile()
        harness.deployment()
    assert harness.condition("Accepted") == ("False", "NotPermitted")
    assert harness.endpoints() == []


async def test_what_served_before_a_limit_was_set_serves_on() -> None:
    harness = Harness()
    harness.edit(lambda live: live["spec"].update(parity={"mode": "Disabled"}))
    await harness.settle()
    assert len(harness.endpoints()) == 1
    harness.operator_settings = SETTINGS.model_copy(update={"weakest_parity_mode": "Enforce"})
    harness.reconciler = harness.operator()
    for _ in range(3):
        await harness.reconcile()
        harness.deployment()
    assert harness.condition("Accepted") == ("False", "NotPermitted")
    assert len(harness.endpoints()) == 1
