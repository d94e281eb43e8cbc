"""The builder's configuration and options, and the base image's recipe."""

from pathlib import Path

import pytest

from encoder_node import buildkit, rootfs
from encoder_node.rootfs import Base
from encoder_node.targets import Target

TARGET = Target(
    name="engine", reference="a/b:1", dockerfile="images/engine/Dockerfile", stage="cpu", arguments={"PLUGIN": "one"}
)


def test_from_names_are_met_by_layouts() -> None:
    bases = {"debian:bookworm-slim": Base(Path("/bases/debian"), "sha256:d")}
    options = buildkit.build_options(TARGET, Path("/src"), bases, {})
    assert "context:debian:bookworm-slim=oci-layout://base0@sha256:d" in options
    assert "base0=/bases/debian" in options


def test_arguments_and_proxies_reach_the_dockerfile() -> None:
    options = buildkit.build_options(TARGET, Path("/src"), {}, {"HTTP_PROXY": "http://proxy"})
    assert {"build-arg:PLUGIN=one", "build-arg:HTTP_PROXY=http://proxy", "target=cpu", "filename=Dockerfile"} <= {
        *options
    }
    assert f"dockerfile={Path('/src/images/engine')}" in options


def test_other_machines_programs_run_where_the_kernel_has_an_emulator_for_them(tmp_path: Path) -> None:
    assert rootfs.architectures(tmp_path / "none") == ("amd64",)
    (tmp_path / "qemu-aarch64").write_text("disabled\ninterpreter /usr/bin/qemu-aarch64-static\n")
    assert rootfs.architectures(tmp_path) == ("amd64",)
    (tmp_path / "qemu-aarch64").write_text("enabled\ninterpreter /usr/bin/qemu-aarch64-static\n")
    assert rootfs.architectures(tmp_path) == ("amd64", "arm64")
    options = buildkit.build_options(TARGET, Path("/src"), {}, {}, ("linux/amd64", "linux/arm64"))
    assert "platform=linux/amd64,linux/arm64" in options
    assert "--architectures=arm64" in rootfs.bootstrap_command(tmp_path, "arm64")
    # the base of the tests' images stays what it is
    assert rootfs.fingerprint({}) != rootfs.fingerprint({}, ("amd64", "arm64"))
    assert not any("architectures" in part for part in rootfs.bootstrap_command(tmp_path))


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A checkout with what decides the large layers."""
    (tmp_path / "images/engine").mkdir(parents=True)
    (tmp_path / "images/engine/Dockerfile").write_text("FROM x\n")
    (tmp_path / "uv.lock").write_text("one\n")
    return tmp_path


def test_our_own_code_is_no_heavy_input(context: Path) -> None:
    before = buildkit.heavy_inputs(TARGET, context, {}, "worker")
    (context / "plugins").mkdir()
    assert buildkit.heavy_inputs(TARGET, context, {}, "worker") == before


def test_lock_and_cache_are_heavy_inputs(context: Path) -> None:
    before = buildkit.heavy_inputs(TARGET, context, {}, "worker")
    assert buildkit.heavy_inputs(TARGET, context, {}, "another") != before
    (context / "uv.lock").write_text("two\n")
    assert buildkit.heavy_inputs(TARGET, context, {}, "worker") != before


def test_blobs_are_shared_not_copied(tmp_path: Path) -> None:
    store, layout = tmp_path / "store", tmp_path / "layout"
    store.mkdir()
    (store / "large").write_bytes(b"x" * buildkit.SHARED_SIZE)
    (store / "small").write_bytes(b"x")
    buildkit.share_blobs(store, layout)
    assert (layout / "blobs/sha256/large").samefile(store / "large")
    assert not (layout / "blobs/sha256/small").exists()


def test_blobs_that_only_the_layout_has_are_swept(tmp_path: Path) -> None:
    store, layout = tmp_path / "store", tmp_path / "layout"
    store.mkdir()
    for name in ("kept", "dropped", "shared"):
        (store / name).write_bytes(b"x" * buildkit.SHARED_SIZE)
    buildkit.share_blobs(store, layout)
    for name in ("kept", "dropped"):
        (store / name).unlink()
    buildkit.sweep(layout, {"sha256:kept"})
    assert sorted(blob.name for blob in (layout / "blobs/sha256").iterdir()) == ["kept", "shared"]


def test_another_file_of_the_machine_is_another_base() -> None:
    assert rootfs.fingerprint({}) != rootfs.fingerprint({"/etc/pip.conf": b""})


def test_daemon_is_configured_to_use_its_worker() -> None:
    text = buildkit.configuration(Path("/state"), Path("/programs"))
    assert "enabled = true" in text
    assert 'binary = "/programs/runc"' in text
