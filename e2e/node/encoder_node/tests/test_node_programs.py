import re
from pathlib import Path

import pytest

from encoder_node import manifests, programs, system_images
from encoder_node.settings import TOOLS, Settings

GO_MOD = """
module tools/node

go 1.26.6

tool (
	github.com/coredns/coredns
	helm.sh/helm/v4/cmd/helm
)

require (
	github.com/coredns/coredns v1.15.0 // indirect
	helm.sh/helm/v4 v4.3.1
	github.com/Azure/azure-sdk-for-go v68.0.0+incompatible // indirect
)

require k8s.io/kubernetes v1.36.3

replace k8s.io/api => k8s.io/api v0.36.9
"""


def test_versions_are_read_from_go_mod() -> None:
    assert programs.module_versions(GO_MOD) == {
        "github.com/coredns/coredns": "v1.15.0",
        "helm.sh/helm/v4": "v4.3.1",
        "github.com/Azure/azure-sdk-for-go": "v68.0.0+incompatible",
        "k8s.io/kubernetes": "v1.36.3",
    }


def test_every_step_has_a_pinned_version_and_its_packages_are_tools_of_the_module(settings: Settings) -> None:
    versions = programs.Programs(settings).versions()
    for step in programs.STEPS:
        go_mod = (TOOLS / step.module / "go.mod").read_text()
        assert versions[step.versioned].startswith("v")
        for package in step.packages:
            assert f"\t{package}\n" in go_mod or (TOOLS / step.module / package / "main.go").is_file(), package


def test_every_tool_of_the_modules_is_built() -> None:
    for module in ("kubernetes", "node"):
        block = (TOOLS / module / "go.mod").read_text().partition("tool (\n")[2].partition("\n)")[0]
        built = {package for step in programs.STEPS if step.module == module for package in step.packages}
        built = {package for package in built if not package.startswith("./")}
        assert {line.strip() for line in block.splitlines()} == built


def test_coredns_has_every_plugin_of_the_corefile() -> None:
    named = re.findall(r"^    (\w+)", manifests.COREFILE, re.MULTILINE)
    imported = re.findall(r'_ "github.com/coredns/coredns/plugin/(\w+)"', (TOOLS / "node/coredns/main.go").read_text())
    assert sorted(imported) == sorted(named)


def test_names_of_programs_are_unique_and_helm_is_helm() -> None:
    names = [name for step in programs.STEPS for name in step.outputs()]
    assert len(set(names)) == len(names)
    assert {"helm", "etcd", "runc", "kubectl", "buildkitd", "buildctl", "kubeconform"} <= set(names)


def test_kubernetes_is_stamped_with_its_version() -> None:
    command = programs.go_build(programs.STEPS[0], Path("/out"), "v1.36.3")
    linker = command[command.index("-ldflags") + 1]
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3 " in linker
    assert "-X k8s.io/client-go/pkg/version.gitMinor=36 " in linker
    assert command[command.index("-o") + 1] == "/out/"


def test_runc_has_seccomp_and_is_static() -> None:
    step = next(step for step in programs.STEPS if step.outputs() == ("runc",))
    command = programs.go_build(step, Path("/out"), "v1.5.2")
    assert "seccomp" in command[command.index("-tags") + 1].split(",")
    assert command[command.index("-ldflags") + 1].endswith("-extldflags -static")


@pytest.mark.parametrize("name", ["kubernetes/go.mod", "node/go.sum"])
def test_other_versions_get_another_folder(name: str) -> None:
    files = {"kubernetes/go.mod": b"1", "node/go.sum": b"2"}
    assert programs.fingerprint(files) == programs.fingerprint(dict(reversed(files.items())))
    assert programs.fingerprint(files) != programs.fingerprint({**files, name: b"3"})


def test_system_image_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"#!")
    for name in ("one.tar", "two.tar"):
        system_images.write(tmp_path / name, "localhost/pause:1", program, user="65535:65535")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert system_images.digest(tmp_path / "one.tar").startswith("sha256:")


@pytest.mark.parametrize(("set_by_user", "expected"), [({}, "400"), ({"GOGC": "50"}, "50")])
def test_a_build_collects_garbage_seldom_unless_the_user_says_otherwise(
    set_by_user: dict[str, str], expected: str, tmp_path: Path
) -> None:
    log = tmp_path / "program.log"
    programs.execute(["sh", "-c", "echo $GOGC"], tmp_path, log, {"PATH": "/bin:/usr/bin", **set_by_user}, 30)
    assert log.read_text().strip() == expected
