from dataclasses import replace
from pathlib import Path

import pytest

from encoder_node import extra_programs, module_sources, programs
from encoder_node.errors import NodeError
from encoder_node.settings import TOOLS


@pytest.mark.parametrize("name", sorted(extra_programs.EXTRAS))
def test_every_extra_program_is_pinned_and_is_a_tool_of_its_module(name: str) -> None:
    step = extra_programs.EXTRAS[name]
    go_mod = (TOOLS / step.module / "go.mod").read_text()
    assert programs.module_versions(go_mod)[step.versioned].startswith("v")
    assert all(package in go_mod.partition("require")[0] for package in step.packages)
    assert step.outputs() == (name,)


def test_an_extra_program_does_not_change_the_set_of_the_node() -> None:
    with_tags = replace(programs.STEPS[0], tags=("x",))
    assert repr(with_tags) == repr(programs.STEPS[0])
    assert extra_programs.fingerprint(with_tags) != extra_programs.fingerprint(programs.STEPS[0])


def test_parts_are_left_out_by_build_tags() -> None:
    command = programs.go_build(extra_programs.EXTRAS["promtool"], Path("/out"), "v0.1.0")
    assert command[command.index("-tags") + 1] == "remove_all_sd"


@pytest.mark.cluster
def test_sources_that_are_not_what_was_pinned_are_refused() -> None:
    source = module_sources.PROMETHEUS_OPERATOR
    assert (module_sources.folder(source) / "example/prometheus-operator-crd").is_dir()
    with pytest.raises(NodeError, match="not h1:other"):
        module_sources.folder(replace(source, sum="h1:other"))
