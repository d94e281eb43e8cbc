from pathlib import Path

import pytest

from encoder_node import control_groups, sandbox
from encoder_node.control_groups import ControlGroups
from encoder_node.errors import WrongStateError
from encoder_node.sandbox import Sandbox
from encoder_node.settings import Settings

PROC_CGROUP = "9:name=systemd:/\n4:memory:/a/b\n1:cpu,cpuacct:/\n0::/x\n"


def test_hierarchies_of_v1_are_folders() -> None:
    assert control_groups.hierarchies_v1(PROC_CGROUP) == ["systemd", "memory", "cpu,cpuacct"]


def test_v2_has_one_folder_and_its_processes_in_a_leaf(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    groups = ControlGroups("n", root=tmp_path)
    assert groups.folders() == [tmp_path / "n"]
    assert groups.entrances() == [tmp_path / "n" / "system" / "cgroup.procs"]
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    assert groups.withheld() == ["cpu"]
    groups.create()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    groups.take_back(["cpu"])
    assert (tmp_path / "cgroup.subtree_control").read_text() == "-cpu"
    assert groups.exist()


def test_memory_does_not_count_cache_that_can_go(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "n").mkdir()
    (tmp_path / "n/memory.current").write_text("1000\n")
    (tmp_path / "n/memory.stat").write_text("anon 5\ninactive_file 300\n")
    assert ControlGroups("n", root=tmp_path).memory() == 700
    assert ControlGroups("other", root=tmp_path).memory() is None


def test_members_of_inner_groups_count(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "n/kubepods").mkdir(parents=True)
    (tmp_path / "n/cgroup.procs").write_text("1\n2\n")
    (tmp_path / "n/kubepods/cgroup.procs").write_text("3\n")
    assert ControlGroups("n", root=tmp_path).members() == {1, 2, 3}


def test_entering_joins_groups_before_namespaces() -> None:
    command = [*sandbox.entering(7, [Path("/cg/a b/cgroup.procs")], "/bin"), "true"]
    assert command[:2] == ["bash", "-c"]
    assert command[2] == "echo $$ > '/cg/a b/cgroup.procs'; exec \"$@\""
    assert command[4:7] == ["nsenter", "-t", "7"]
    assert command[-1] == "true"


def test_nothing_was_started_so_nothing_is_ended(settings: Settings) -> None:
    Sandbox(settings, Path("/programs")).destroy()


@pytest.mark.parametrize("claim", ['{"boot": "another", "controllers": []}', ""], ids=["another boot", "half written"])
def test_state_of_an_earlier_run_of_the_machine_is_only_files(
    claim: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.paths.run.mkdir(parents=True)
    (settings.paths.run / sandbox.CLAIM).write_text(claim)

    def forbidden(self: Sandbox) -> None:
        raise AssertionError("nothing of before the restart can be alive")

    monkeypatch.setattr(Sandbox, "_end_processes", forbidden)
    Sandbox(settings, Path("/programs")).destroy()


def test_command_on_a_node_that_is_down_says_so(settings: Settings) -> None:
    with pytest.raises(WrongStateError, match="the node is down"):
        Sandbox(settings, Path("/programs")).command(["true"])
