"""Label sets from repositories, over the real client from the real hub server: with its token, up to the limit, checked, and resumed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.request import Request as Post
from urllib.request import urlopen

import pytest

from encoder_plugins import errors
from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.sources.huggingface import HubSource
from encoder_plugins.prep.tests.fetched_sets import labels_of, of, sha256, sources

TOKEN = "hf_test_token"
LABELS = [Label(f"E{number}", f"entity {number}") for number in range(2000)]
CONTENT = "\n".join(json.dumps({"id": label.id, "label": label.text}) for label in LABELS).encode()
DIGEST = sha256(CONTENT)
# the hub states the sha256 of files with this suffix, and sends them from elsewhere
SMALL, LARGE = "data/labels.jsonl", "labels.bin"
LARGE_CONTENT = CONTENT + b"\n"
LARGE_DIGEST = sha256(LARGE_CONTENT)


@pytest.fixture(scope="module")
def commit(hub: Any) -> str:
    """The commit of a repository of a data set, and of one of a model with another name, that have the labels."""
    files = {SMALL: CONTENT, LARGE: LARGE_CONTENT}
    body = json.dumps({path: base64.b64encode(content).decode() for path, content in files.items()}).encode()
    found = set()
    for repository in ("datasets/demo/catalogue", "demo/labelled"):
        with urlopen(Post(f"{hub.address}/_repositories/{repository}", data=body)) as answer:
            found.add(json.load(answer)["v1"])
    (one,) = found
    return str(one)


def sent(hub: Any, repository: str) -> int:
    with urlopen(f"{hub.address}/_sent") as answer:
        return int(json.load(answer).get(repository, 0))


def test_a_set_is_taken_from_a_repository_of_either_type_with_the_hub_and_the_token_of_the_checkpoint(
    hub: Any, commit: str, tmp_path: Path, progress: Progress, lines: list[dict[str, object]]
) -> None:
    given = sources(
        f"a=hf://datasets/gated/catalogue@{commit}/{SMALL}@{DIGEST}",
        f"b=hf://datasets/gated/catalogue@{commit}/{LARGE}@{LARGE_DIGEST}",
        f"c=hf://demo/labelled@{commit}/{SMALL}@{DIGEST}",
    )
    sets, _ = of(tmp_path / "key", *given, source="demo/tiny", endpoint=hub.address, token=TOKEN)
    sets.bring(progress)
    assert labels_of(sets) == {"a": LABELS, "b": LABELS, "c": LABELS}
    downloads = {line["message"]: line["total"] for line in lines if line["phase"] == "download" and "message" in line}
    assert downloads == {f"label set {name}": len(CONTENT) + (name == "b") for name in "abc"}
    for token in (None, "another"):
        sets, staging = of(tmp_path / "refused", *given, source="demo/tiny", endpoint=hub.address, token=token)
        with pytest.raises(errors.AuthFailed, match=r"label set a: 127\.0\.0\.1 answered 401.*; give a token"):
            sets.bring(progress)
        assert not staging.partial.exists()


def test_where_the_checkpoint_is_from_no_hub_the_one_of_the_environment_is_taken(
    hub: Any, commit: str, tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    given = sources(f"a=hf://datasets/demo/catalogue@{commit}/{SMALL}@{DIGEST}")
    for source in ("s3://models/demo", "https://web/model.tar"):
        # which is the store's
        sets, _ = of(tmp_path / "key", *given, source=source, endpoint="http://127.0.0.1:9")
        sets.bring(progress)
        assert labels_of(sets) == {"a": LABELS}


@pytest.mark.parametrize(
    ("place", "digest", "error", "message"),
    [
        ("datasets/demo/catalogue@{commit}/none.jsonl", DIGEST, errors.SourceFileNotFound, "answered 404: Entry not found"),
        ("datasets/demo/catalogue@" + "0" * 40 + f"/{SMALL}", DIGEST, errors.RevisionNotFound, "answered 404: Invalid rev"),
        ("datasets/demo/labelled@{commit}/" + SMALL, DIGEST, errors.RepositoryNotFound, "or it is private, and needs a"),
        ("demo/catalogue@{commit}/" + SMALL, DIGEST, errors.RepositoryNotFound, "or it is private, and needs a token"),
        ("datasets/demo/catalogue@{commit}/" + SMALL, "0" * 64, errors.ChecksumMismatch, f"hashes to {DIGEST}, expected 0"),
        # before they are downloaded
        ("datasets/copy/catalogue@{commit}/" + LARGE, "0" * 64, errors.ChecksumMismatch, f"{LARGE_DIGEST} at 127.0.0.1, exp"),
        ("datasets/huge/catalogue@{commit}/" + LARGE, LARGE_DIGEST, errors.Unsupported, f"{1 << 60} bytes; the limit is {256 << 20}"),
    ],
)  # fmt: skip
def test_a_refusal_has_its_reason_names_the_set_and_leaves_nothing(
    hub: Any,
    commit: str,
    tmp_path: Path,
    progress: Progress,
    place: str,
    digest: str,
    error: type[errors.PrepareError],
    message: str,
) -> None:
    given = sources(f"cities=hf://{place.format(commit=commit)}@{digest}")
    sets, staging = of(tmp_path / "key", *given, source="demo/tiny", endpoint=hub.address)
    with pytest.raises(error) as caught:
        sets.bring(progress)
    assert type(caught.value) is error
    assert str(caught.value).startswith("label set cities")
    assert message in str(caught.value)
    assert list(staging.partial.glob("*")) == []
    assert not sent(hub, "datasets/copy/catalogue") + sent(hub, "datasets/huge/catalogue")


def test_a_set_of_unknown_size_is_downloaded_up_to_the_limit(
    hub: Any, commit: str, tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as a mirror answers that reports no size
    monkeypatch.setattr(HubSource, "completed", lambda source, file, progress: file)
    given = sources(f"a=hf://datasets/demo/catalogue@{commit}/{SMALL}@{DIGEST}")
    monkeypatch.setattr(label_sets, "MOST_BYTES", len(CONTENT))
    of(tmp_path / "just", *given, source="demo/tiny", endpoint=hub.address)[0].bring(progress)
    monkeypatch.setattr(label_sets, "MOST_BYTES", len(CONTENT) - 1)
    sets, staging = of(tmp_path / "more", *given, source="demo/tiny", endpoint=hub.address)
    with pytest.raises(errors.Unsupported, match=f"label set a: more than {len(CONTENT) - 1} bytes, the limit"):
        sets.bring(progress)
    assert list(staging.partial.iterdir()) == []


def test_a_download_that_stalled_goes_on_from_the_bytes_that_are_there(
    hub: Any, commit: str, tmp_path: Path, progress: Progress, naps: list[float]
) -> None:
    given = sources(f"a=hf://datasets/stall-once/catalogue@{commit}/{LARGE}@{LARGE_DIGEST}")
    options: dict[str, Any] = {"source": "demo/tiny", "endpoint": hub.address, "stall_seconds": 1.0}
    sets, staging = of(tmp_path / "key", *given, **options)
    with pytest.raises(errors.Stalled, match="label set a: no byte from"):
        sets.bring(progress)
    assert [file.stat().st_size for file in staging.partial.iterdir()] == [len(LARGE_CONTENT) // 2]
    with urlopen(Post(f"{hub.address}/_healed/datasets/stall-once/catalogue", data=b"")):
        pass
    before = sent(hub, "datasets/stall-once/catalogue")
    sets, _ = of(tmp_path / "key", *given, **options)
    sets.bring(progress)
    assert labels_of(sets) == {"a": LABELS}
    assert sent(hub, "datasets/stall-once/catalogue") - before == len(LARGE_CONTENT) - len(LARGE_CONTENT) // 2
