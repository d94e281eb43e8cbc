import json
from pathlib import Path
from typing import Any

from encoder_node import layouts, targets
from encoder_release import build, labels
from encoder_release.build import Built
from encoder_release.plan import plan
from encoder_release.provenance import Source

VERSION = "1.2.3"
SOURCE = Source(commit="1" * 40, time="2026-01-02T03:04:05Z", url="")


def test_each_platform_of_an_image_is_labelled_and_nothing_else_changes(tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    single: dict[str, str] = {}
    for name in ("amd64", "arm64"):
        (tmp_path / "layer.tar").write_bytes(name.encode())
        settings = {"User": "65532", "Labels": {"own": name}}
        single[name] = layouts.write_layout(layout, tmp_path / "layer.tar", ["A=b"], settings, architecture=name)
    index = layouts.write_index(layout, single)
    release = plan("localhost:5000/team", VERSION, VERSION, targets.current(), "operator")
    (image,) = release.images

    found = labels.add(Built(layout, {"operator": index}), release, SOURCE)

    def read(digest: str) -> Any:
        return json.loads(layouts.blob_path(layout, digest).read_bytes())

    entries = read(found.digests["operator"])["manifests"]
    assert [entry["platform"]["architecture"] for entry in entries] == list(single)
    for entry, before in zip(entries, single.values(), strict=True):
        assert entry["size"] == layouts.blob_path(layout, entry["digest"]).stat().st_size
        manifest, old = read(entry["digest"]), read(before)
        assert manifest["layers"] == old["layers"]
        config, was = read(manifest["config"]["digest"]), read(old["config"]["digest"])
        own = config["config"].pop("Labels")
        assert own == {**was["config"].pop("Labels"), **labels.of(image, release, SOURCE)}
        assert own["org.opencontainers.image.version"] == VERSION
        # a checkout without an address has no source
        assert "org.opencontainers.image.source" not in own
        assert config == was
    assert build.platform_manifests(layout, found.digests["operator"]).keys() == {"linux/amd64", "linux/arm64"}
    # tools find it by the index, once
    labels.add(Built(layout, {"operator": index}), release, SOURCE)
    listed = [entry["digest"] for entry in json.loads((layout / "index.json").read_bytes())["manifests"]]
    assert listed.count(found.digests["operator"]) == 1
