import subprocess
import sys
from pathlib import Path

import pytest

from encoder_node import processes
from encoder_node.processes import Live, Record

OURS = Record("etcd", 40, 1234, "boot-1", "/bin/etcd")


@pytest.mark.parametrize(
    ("live", "boot", "ours"),
    [
        (Live(1234, "S", "nsenter -- /bin/etcd --x"), "boot-1", True),
        (None, "boot-1", False),
        (Live(1235, "S", "nsenter -- /bin/etcd --x"), "boot-1", False),
        (Live(1234, "S", "vim notes"), "boot-1", False),
        (Live(1234, "S", "nsenter -- /bin/etcd --x"), "boot-2", False),
    ],
    ids=["the same", "gone", "started at another time", "another command", "before a restart"],
)
def test_only_the_recorded_process_is_ours(live: Live | None, boot: str, ours: bool) -> None:
    assert processes.is_ours(OURS, live, boot) is ours


def test_stat_is_parsed_whatever_the_program_is_called() -> None:
    tail = " ".join(["0"] * 18 + ["777"] + ["0"] * 20)
    assert processes.parse_stat(f"7 (a) b (c)) S {tail}") == ("S", 777)


def test_record_survives_the_disk(tmp_path: Path) -> None:
    OURS.write(tmp_path)
    assert processes.records(tmp_path) == {"etcd": OURS}


def test_half_written_record_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".etcd.json").write_text('{"name": "et')
    assert processes.records(tmp_path) == {}


def test_only_the_recorded_process_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        item = processes.record("one", process.pid, sys.executable)
        stranger = Record("one", process.pid, item.started - 1, item.boot, item.marker)
        assert not processes.kill(stranger)
        assert processes.alive(item)
        assert processes.kill(item)
    finally:
        process.kill()
        process.communicate()
    assert not processes.alive(item)
    assert not processes.kill(item)
