"""The hub server speaks as the real one does: the stock client downloads from it, and meets each fault."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

HUB = Path(__file__).parents[1] / "hub.py"
WEIGHTS = bytes(range(256)) * 4096
REPOSITORY = "demo/model"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models") / "demo" / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    command = [sys.executable, str(HUB), "--models", str(folder.parents[1]), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


@pytest.fixture
def api(address: str) -> HfApi:
    return HfApi(endpoint=address, token=False)


def test_the_stock_client_downloads_a_repository(address: str, tmp_path: Path) -> None:
    snapshot_download(REPOSITORY, local_dir=tmp_path, endpoint=address, token=False)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert (tmp_path / "1_Pooling" / "config.json").read_text() == "{}"


def test_a_listing_has_sizes_and_hashes(api: HfApi) -> None:
    info = api.model_info(REPOSITORY, files_metadata=True)
    files = {sibling.rfilename: sibling for sibling in info.siblings or []}
    large, small = files["model.safetensors"], files["config.json"]
    assert large.lfs is not None
    assert large.lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    assert large.size == len(WEIGHTS)
    assert (small.size, small.blob_id, small.lfs) == (2, hashlib.sha1(b"blob 2\0{}").hexdigest(), None)
    tree = [entry.path for entry in api.list_repo_tree(REPOSITORY)]
    assert tree == ["1_Pooling", "config.json", "model.safetensors"]
    assert [entry.path for entry in api.list_repo_tree(REPOSITORY, "1_Pooling")] == ["1_Pooling/config.json"]


def test_revisions_are_derived_from_content(api: HfApi) -> None:
    first, second = (api.model_info(REPOSITORY, revision=tag).sha for tag in ("v1", "v2"))
    assert first == api.model_info(REPOSITORY).sha
    assert second is not None
    assert first != second
    assert api.model_info(REPOSITORY, revision=second).sha == second


def test_a_range_is_the_rest_of_a_file(address: str) -> None:
    request = Request(f"{address}/{REPOSITORY}/resolve/main/model.safetensors", headers={"Range": "bytes=1000000-"})
    with urlopen(request) as answer:
        assert answer.status == 206
        assert answer.headers["Content-Range"] == f"bytes 1000000-{len(WEIGHTS) - 1}/{len(WEIGHTS)}"
        assert answer.read() == WEIGHTS[1_000_000:]


def test_what_is_missing_has_a_distinct_error(api: HfApi, address: str, tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("demo/other")
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPOSITORY, revision="0" * 40)
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download(REPOSITORY, "other", local_dir=tmp_path, endpoint=address, token=False)


def test_a_gated_repository_wants_its_token(address: str, tmp_path: Path) -> None:
    with pytest.raises(GatedRepoError):
        hf_hub_download("gated/model", "config.json", local_dir=tmp_path, endpoint=address, token=False)
    hf_hub_download("gated/model", "config.json", local_dir=tmp_path, endpoint=address, token="hf_test_token")


@pytest.mark.parametrize(("name", "failures"), [("error/model", 2), ("busy/model", 2)])
def test_some_faults_pass(api: HfApi, name: str, failures: int) -> None:
    for _ in range(failures):
        with pytest.raises(HfHubHTTPError):
            api.model_info(name)
    assert api.model_info(name).sha


def test_some_faults_stay(api: HfApi) -> None:
    for name in ["down/model", "limited/model"] * 3:
        with pytest.raises(HfHubHTTPError):
            api.model_info(name)


def test_wrong_bytes_have_the_right_length(address: str) -> None:
    with urlopen(f"{address}/corrupt/model/resolve/main/model.safetensors") as answer:
        content = answer.read()
    assert len(content) == len(WEIGHTS)
    assert content != WEIGHTS


def test_a_fault_can_be_ended(api: HfApi, address: str) -> None:
    with pytest.raises(HfHubHTTPError):
        api.model_info("down-for-a-while/model")
    heal(address, "down-for-a-while/model")
    assert api.model_info("down-for-a-while/model").sha
    with pytest.raises(HfHubHTTPError):
        api.model_info("down/model")


def test_a_slow_file_trickles_from_its_middle_on_and_what_is_sent_is_counted(address: str) -> None:
    half = len(WEIGHTS) // 2
    with urlopen(f"{address}/slow/model/resolve/main/model.safetensors") as answer:
        content = answer.read(half)
        content += answer.read(2000)
        assert half < sent(address, "slow/model") < half + 100_000
        heal(address, "slow/model")
        content += answer.read()
    assert content == WEIGHTS
    assert sent(address, "slow/model") == len(WEIGHTS)
    with urlopen(Request(f"{address}/slow/model/resolve/main/config.json")) as answer:
        assert answer.read() == b"{}"
    assert sent(address, "slow/model") == len(WEIGHTS) + 2


def test_a_copy_has_the_files_and_counters_of_its_own(api: HfApi, address: str) -> None:
    assert api.model_info("copy-mine/model").sha == api.model_info("demo/model").sha
    with urlopen(f"{address}/copy-mine/model/resolve/main/model.safetensors") as answer:
        assert answer.read() == WEIGHTS
    assert sent(address, "copy-mine/model") == len(WEIGHTS)
    with urlopen(f"{address}/_requests") as answer:
        assert json.load(answer)["GET cdn copy-mine/model"] == 1


def heal(address: str, repository: str) -> None:
    with urlopen(Request(f"{address}/_healed/{repository}", data=b"")):
        pass


def sent(address: str, repository: str) -> int:
    with urlopen(f"{address}/_sent") as answer:
        return int(json.load(answer)[repository])


def test_a_huge_repository_claims_its_size_everywhere(api: HfApi, address: str) -> None:
    info = api.model_info("huge/model", files_metadata=True)
    sizes = [sibling.size or 0 for sibling in info.siblings or [] if sibling.lfs]
    assert sizes == [1 << 60]


def test_the_packaged_model_has_a_fixed_revision() -> None:
    def revision(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, str(HUB), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert revision("--revision") == "b1ae82044ee8447606cb57ea10a0f9b24659981b"
    assert revision("--revision", "v2") != revision("--revision", "v1") == revision("--revision")


def test_a_repository_can_be_published_while_it_runs(address: str, tmp_path: Path) -> None:
    files = {"config.json": b'{"new": 1}', "sub/model.safetensors": WEIGHTS}
    body = json.dumps({path: base64.b64encode(content).decode() for path, content in files.items()}).encode()
    with urlopen(Request(f"{address}/_repositories/other/new", data=body)) as answer:
        revision = json.load(answer)["v1"]
    snapshot_download("other/new", revision=revision, local_dir=tmp_path, endpoint=address, token=False)
    assert {path: (tmp_path / path).read_bytes() for path in files} == files
    # the same content has the same revision
    with urlopen(Request(f"{address}/_repositories/other/again", data=body)) as answer:
        assert json.load(answer)["v1"] == revision


def test_a_data_set_is_no_model_of_the_same_name(address: str, tmp_path: Path) -> None:
    content = b'["a"]'
    body = json.dumps({path: base64.b64encode(content).decode() for path in ("labels.json", "labels.bin")}).encode()
    with urlopen(Request(f"{address}/_repositories/datasets/demo/model", data=body)):
        pass
    with urlopen(Request(f"{address}/_repositories/datasets/other/labels", data=body)):
        pass

    def downloaded(repository: str, path: str, kind: str, token: str | bool = False) -> bytes:
        # the client is content with a file that it has
        folder = tmp_path / kind / repository / str(token)
        found = hf_hub_download(repository, path, repo_type=kind, local_dir=folder, endpoint=address, token=token)
        return Path(found).read_bytes()

    for path in ("labels.json", "labels.bin"):
        assert downloaded(REPOSITORY, path, "dataset") == content
        with pytest.raises(RemoteEntryNotFoundError):
            downloaded(REPOSITORY, path, "model")
    # faults, too
    with pytest.raises(RepositoryNotFoundError):
        downloaded("gated/labels", "labels.json", "model")
    with pytest.raises(GatedRepoError):
        downloaded("gated/labels", "labels.json", "dataset")
    assert downloaded("gated/labels", "labels.json", "dataset", "hf_test_token") == content
    with pytest.raises(RemoteEntryNotFoundError):
        downloaded("gated/model", "config.json", "dataset", "hf_test_token")
    assert downloaded(REPOSITORY, "config.json", "model") == b"{}"
