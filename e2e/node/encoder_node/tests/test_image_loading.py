"""Which layers are sent to the node, and what is reported when one cannot be."""

from pathlib import Path

import pytest

from encoder_node import images, layouts, linking
from encoder_node.errors import NodeError


@pytest.fixture
def layout(tmp_path: Path) -> tuple[Path, layouts.Image]:
    """A layout with one image of one small layer."""
    (tmp_path / "layer.tar").write_bytes(b"\0" * 10240)
    digest = layouts.write_layout(tmp_path / "layout", tmp_path / "layer.tar", [])
    return tmp_path / "layout", layouts.read_image(tmp_path / "layout", digest)


def test_a_layer_is_linked_where_it_is_large_or_has_lost_its_archive(layout: tuple[Path, layouts.Image]) -> None:
    folder, image = layout
    assert image.layers[0].size < linking.WORTHWHILE
    assert not images._is_linked(image.layers[0], folder)
    assert images._is_linked(layouts.Descriptor(image.layers[0].digest, linking.WORTHWHILE), folder)
    layouts.hollow(layouts.blob_path(folder, image.layers[0].digest))
    assert images._is_linked(image.layers[0], folder)


def refuse(layout: tuple[Path, layouts.Image], message: str) -> None:
    """Begin to read the image's archive, and end with an error as containerd's client does."""
    folder, image = layout
    with images._archive(folder, "a/b:1", image, image.layers) as stream:
        stream.read(1)
        raise NodeError(message)


def test_why_an_archive_could_not_be_written_is_reported_whatever_its_reader_reports(
    layout: tuple[Path, layouts.Image],
) -> None:
    layer = layout[1].layers[0]
    layouts.hollow(layouts.blob_path(layout[0], layer.digest))
    with pytest.raises(NodeError, match=f"no longer has the content of {layer.digest}"):
        refuse(layout, "unrecognized image format")


def test_what_the_reader_says_of_a_whole_archive_is_kept(layout: tuple[Path, layouts.Image]) -> None:
    with pytest.raises(NodeError, match="no space left"):
        refuse(layout, "no space left")
