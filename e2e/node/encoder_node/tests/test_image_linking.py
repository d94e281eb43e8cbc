"""Finding the folder that holds a layer, and what containerd says about folders."""

import os
import tarfile
from pathlib import Path

import pytest

from encoder_node import layouts, linking
from encoder_node.errors import NodeError


def fill(folder: Path, content: str = "content") -> None:
    (folder / "etc").mkdir(parents=True)
    (folder / "etc" / "file").write_text(content)
    (folder / "link").symlink_to("etc/file")
    for path in (folder / "etc" / "file", folder / "link"):
        os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)


@pytest.fixture
def links(tmp_path: Path) -> linking.Links:
    """BuildKit's snapshots, the second of which is the layer in the layout."""
    snapshots, layout = tmp_path / "snapshots", tmp_path / "layout"
    for number, content in enumerate(("another", "content", "missing")):
        fill(snapshots / str(number) / "fs", content)
    (snapshots / "2" / "fs" / "link").unlink()
    (layout / "blobs" / "sha256").mkdir(parents=True)
    with tarfile.open(layout / "blobs" / "sha256" / "layer", "w") as out:
        out.add(snapshots / "1" / "fs", arcname=".")
    return linking.Links(snapshots, layout, tmp_path / "layers.json")


LAYER = layouts.Descriptor("sha256:layer", 10240)


def test_folder_with_the_layers_files_is_found(links: linking.Links) -> None:
    assert links.folder(LAYER) == links.snapshots / "1" / "fs"


def test_folder_found_once_is_known_without_the_archive(links: linking.Links) -> None:
    found = links.folder(LAYER)
    layouts.hollow(links.layout / "blobs" / "sha256" / "layer")
    assert links.folder(LAYER) == found


def test_folder_with_another_time_is_not_the_layer(links: linking.Links) -> None:
    os.utime(links.snapshots / "1" / "fs" / "etc" / "file", (1, 1))
    assert links.folder(LAYER) is None


def test_smallest_of_several_folders_is_the_layer(links: linking.Links) -> None:
    fill(links.snapshots / "0-larger" / "fs")
    (links.snapshots / "0-larger" / "fs" / "more").touch()
    assert links.folder(LAYER) == links.snapshots / "1" / "fs"


def test_layer_lost_on_both_sides_is_an_error(links: linking.Links) -> None:
    layouts.hollow(links.layout / "blobs" / "sha256" / "layer")
    with pytest.raises(NodeError, match="build again"):
        links.folder(LAYER)


def test_writable_folder_of_an_overlay() -> None:
    mounts = "mount -t overlay overlay /x -o index=off,workdir=/c/9/work,upperdir=/c/9/fs,lowerdir=/c/1/fs\n"
    assert linking.writable_folder(mounts) == Path("/c/9/fs")


def test_writable_folder_of_the_lowest_layer() -> None:
    assert linking.writable_folder("mount -t bind /c/9/fs /x -o rw,rbind\n") == Path("/c/9/fs")


def test_no_folder_is_an_error() -> None:
    with pytest.raises(NodeError, match="no folder"):
        linking.writable_folder("")
