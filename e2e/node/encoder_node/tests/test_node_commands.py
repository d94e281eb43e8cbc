import pytest

from encoder_node.__main__ import execute, parser
from encoder_node.node import NodeCluster
from encoder_node.settings import Settings
from encoder_node.status import Status


@pytest.mark.parametrize(
    "line", ["build", "up", "down", "status", "kubeconfig", "bin", "load a.tar b.tar", "run -- ls -l"]
)
def test_commands_are_understood(line: str) -> None:
    assert parser().parse_args(line.split()).command == line.split()[0]


def test_status_is_in_the_exit_code(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = NodeCluster(settings)
    assert execute(cluster, parser().parse_args(["status"])) == 1
    monkeypatch.setattr(NodeCluster, "status", lambda self: Status(up=True, lines=("fine",)))
    assert execute(cluster, parser().parse_args(["status"])) == 0
    assert capsys.readouterr().out == "down\nfine\n"


def test_run_passes_what_follows_the_dashes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeCluster, "command", lambda self, command: list(command))
    assert execute(NodeCluster(settings), parser().parse_args(["run", "--", "sh", "-c", "exit 3"])) == 3
