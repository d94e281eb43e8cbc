from pathlib import Path

import pytest

from encoder_node import prerequisites
from encoder_node.errors import MissingPrerequisiteError
from encoder_node.prerequisites import Missing, Program

MOUNTINFO = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:20 / /proc rw - proc proc rw
30 21 0:30 / /work rw - overlay overlay rw
31 30 8:1 / /work/my\\040disk rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8\n", (1, 26)), ("go1.27rc1", (1, 27)), ("go2.0", (2, 0)), ("devel +abc", None), ("", None)],
)
def test_go_version_is_parsed(text: str, version: tuple[int, int] | None) -> None:
    assert prerequisites.parse_go_version(text) == version


def test_what_is_missing_is_one_line_with_debian_packages() -> None:
    line = prerequisites.sentence(
        [Missing("Go >= 1.26 (found go1.19)"), Missing("nft", "nftables"), Missing("ip", "iproute2")]
    )
    assert line == "this machine lacks Go >= 1.26 (found go1.19), nft, ip; on Debian: apt-get install iproute2 nftables"


def test_what_has_no_package_is_named_alone() -> None:
    assert prerequisites.sentence([Missing("root")]) == "this machine lacks root"


def test_programs_and_headers_are_looked_for(tmp_path: Path) -> None:
    header = tmp_path / "there.h"
    header.touch()
    programs = (
        Program("sh", "dash"),
        Program("no-such-program-here", "a"),
        Program(str(header), "b"),
        Program("/no/such.h", "c"),
    )
    assert prerequisites.missing_programs(programs) == [
        Missing("no-such-program-here", "a"),
        Missing("/no/such.h", "c"),
    ]


def test_a_shared_library_is_looked_for_as_vllm_loads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = (Program("libc.so.6", "libc6"), Program("libnothing.so.1", "libnothing1"))
    monkeypatch.setattr(prerequisites, "ENGINE_LIBRARIES", libraries)
    monkeypatch.setattr(prerequisites, "ENGINE_PROGRAMS", (Program("no-such-program-here", "a"),))
    assert prerequisites.missing_for_engines() == [
        Missing("no-such-program-here", "a"),
        Missing("libnothing.so.1", "libnothing1"),
    ]


def test_nothing_missing_is_fine() -> None:
    prerequisites.ensure([], install=False)


def test_what_may_not_be_installed_is_refused() -> None:
    with pytest.raises(MissingPrerequisiteError, match="lacks nft; on Debian: apt-get install nftables"):
        prerequisites.ensure([Missing("nft", "nftables")], install=False)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/work/x", "overlay"), ("/work/my disk/x", "xfs"), ("/worker", "ext4"), ("/proc/1", "proc"), ("/", "ext4")],
)
def test_file_system_of_a_path(path: str, kind: str) -> None:
    assert prerequisites.filesystem(Path(path), MOUNTINFO) == kind


def test_cache_in_a_place_that_the_node_covers_is_refused() -> None:
    found = prerequisites.missing_system(Path("/var/lib/cache"))
    assert any("set ENCODER_CACHE" in item.what for item in found)
