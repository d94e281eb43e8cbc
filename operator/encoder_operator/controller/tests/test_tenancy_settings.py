from __future__ import annotations

from encoder_operator.tests.world import SETTINGS, World, fails


async def test_a_mode_that_is_not_allowed_opens_no_gate() -> None:
    world = World()
    world.operator_settings = SETTINGS.model_copy(update={"weakest_parity_mode": "Enforce"})
    world.reconciler = world.operator()
    world.parity = fails
    world.edit(lambda live: live["spec"]["parity"].update(mode="Enforce") if "parity" in live["spec"] else None)
    # a pod whose comparison is still to come
    await world.look()
    world.jobs()
    await world.look()
    world.deployment()
    assert world.fake.of("pods", component="serving")
    world.edit(lambda live: live["spec"].update(parity={"mode": "Disabled"}))
    for _ in range(3):
        await world.look()
        world.deployment()
    assert world.condition("Accepted") == ("False", "NotPermitted")
    assert world.endpoints() == []


async def test_what_served_before_a_limit_was_set_serves_on() -> None:
    world = World()
    world.edit(lambda live: live["spec"].update(parity={"mode": "Disabled"}))
    await world.settle()
    assert len(world.endpoints()) == 1
    world.operator_settings = SETTINGS.model_copy(update={"weakest_parity_mode": "Enforce"})
    world.reconciler = world.operator()
    for _ in range(3):
        await world.look()
        world.deployment()
    assert world.condition("Accepted") == ("False", "NotPermitted")
    assert len(world.endpoints()) == 1
