import io
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from encoder_node import image_store

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
HOST = image_store.DEFAULT_HOST


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("encoder-operator/operator:0.1.0", f"{HOST}encoder-operator/operator:0.1.0"),
        ("alone:1", f"{HOST}library/alone:1"),
        ("localhost/pause:1", "localhost/pause:1"),
        ("hub.example/x:1", "hub.example/x:1"),
        ("hub:5000/x", "hub:5000/x"),
    ],
)
def test_name_is_what_the_kubelet_looks_up(reference: str, name: str) -> None:
    assert image_store.normalized(reference) == name


@pytest.mark.parametrize(
    ("reference", "pinned"),
    [
        ("a/b:1", f"a/b@{A}"),
        ("a/b", f"a/b@{A}"),
        ("hub:5000/b", f"hub:5000/b@{A}"),
        ("hub:5000/b:1", f"hub:5000/b@{A}"),
    ],
)
def test_digest_takes_the_place_of_the_tag(reference: str, pinned: str) -> None:
    assert image_store.by_digest(reference, A) == pinned


def test_imported_image_gets_its_full_name_and_its_digest() -> None:
    assert image_store.missing_names({"encoder-operator/x:1": A}) == {
        "encoder-operator/x:1": [f"{HOST}encoder-operator/x:1", f"{HOST}encoder-operator/x@{A}"]
    }


def test_tag_that_moved_moves_under_its_full_name_too() -> None:
    images = {"e/x:1": B, f"{HOST}e/x:1": A, f"{HOST}e/x@{A}": A}
    assert image_store.missing_names(images)["e/x:1"] == [f"{HOST}e/x:1", f"{HOST}e/x@{B}"]


def test_image_with_all_names_needs_none() -> None:
    assert image_store.missing_names({"localhost/p:1": A, f"localhost/p@{A}": A, A: A}) == {}


def test_digests_without_a_tag_and_bare_ids_are_outdated() -> None:
    images = {"localhost/p:1": B, f"localhost/p@{A}": A, f"localhost/p@{B}": B, A: A}
    assert image_store.outdated_names(images) == [f"localhost/p@{A}", A]


def test_listings_are_parsed() -> None:
    images = f"REF TYPE DIGEST SIZE PLATFORMS LABELS\nlocalhost/p:1 application/x {A} 1.0 MiB linux/amd64 -\n"
    snapshots = "KEY PARENT KIND\nsha256:1  Committed\nsha256:2 sha256:1 Committed\nabc sha256:2 Active\n"
    assert image_store.parse_images(images) == {"localhost/p:1": A}
    assert image_store.parse_snapshots(snapshots) == {"sha256:1": "Committed", "sha256:2": "Committed", "abc": "Active"}


class Node:
    """Answers like containerd's client, and remembers its commands."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], *, stdin: IO[bytes] | None = None, seconds: float = 600) -> str:
        self.commands.append(list(command))
        if stdin is not None:
            stdin.read()
        return self.answers.get(" ".join(command[3:5]), "")


def store(node: Node) -> image_store.ImageStore:
    return image_store.ImageStore(node, client=["ctr"], import_options=["--local"])


def test_import_streams_the_archive_and_names_the_image() -> None:
    node = Node({"images ls": f"REF TYPE DIGEST\ne/x:1 t {A}\n"})
    store(node).import_image(io.BytesIO(b"archive"))
    assert node.commands[0] == ["ctr", "-n", "k8s.io", "images", "import", "--local", "-"]
    assert node.commands[-1] == [
        "ctr",
        "-n",
        "k8s.io",
        "images",
        "tag",
        "--force",
        "e/x:1",
        f"{HOST}e/x:1",
        f"{HOST}e/x@{A}",
    ]


def test_sweep_keeps_layers_and_tagged_images() -> None:
    node = Node(
        {
            "containers ls": "c1\nc2\n",
            "leases ls": "l1\n",
            "snapshots ls": "KEY PARENT KIND\nsha256:1  Committed\nc1 sha256:1 Active\n",
            "images ls": f"REF TYPE DIGEST\nlocalhost/p:1 t {A}\n{B} t {A}\n",
        }
    )
    store(node).sweep()
    removals = [command[3:] for command in node.commands if command[4] == "rm"]
    assert removals == [
        ["containers", "rm", "c1", "c2"],
        ["snapshots", "rm", "c1"],
        ["leases", "rm", "l1"],
        ["images", "rm", B],
    ]


def test_only_images_stay_of_containerds_root(tmp_path: Path) -> None:
    for name in (*image_store.KEPT, "io.containerd.grpc.v1.cri", "io.containerd.runtime.v2.task"):
        (tmp_path / name / "x").mkdir(parents=True)
    image_store.remove_leftovers(tmp_path)
    assert {part.name for part in tmp_path.iterdir()} == set(image_store.KEPT)
