import pytest

from encoder_node import targets
from encoder_platform import demo, install
from encoder_plugins import catalog

TARGETS = targets.targets(catalog.plugins().values(), "1.2.0")


@pytest.mark.parametrize("plugin", catalog.plugins())
def test_a_demo_builds_what_its_model_needs_and_nothing_else(plugin: str) -> None:
    found = install.needed_images(TARGETS, [plugin])
    assert sorted(target.name for target in found) == sorted(
        ["operator", "e2e", f"engine-{plugin}-cpu", f"prep-{plugin}"]
    )
    # what the chart gets of them is complete
    values = install.chart_values({target.name: f"x@sha256:{target.name}" for target in found})
    assert (list(values["engines"]["cpu"]), list(values["preps"])) == ([plugin], [plugin])


def test_the_menu_has_every_plugin() -> None:
    assert demo.menu() == [demo.MINILM, *catalog.plugins()]
