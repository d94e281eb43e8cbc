"""Label sets in artifacts: from files and the web, part of the artifact's identity, and refused where they cannot be served."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from encoder_plugins.artifact import label_sets, manifest
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.artifact.reference import Recording
from encoder_plugins.errors import ChecksumMismatch, InsufficientSpace, SourceFileNotFound, Unsupported
from encoder_plugins.prep.label_sets import cases as label_set_cases
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import LabelSetSource
from encoder_plugins.prep.sources.http import WebSource
from encoder_plugins.prep.tests import web_server
from encoder_plugins.prep.tests.changed_checkpoint import nothing, prepared
from encoder_plugins.prep.tests.fetched_sets import PLUGIN, of, sha256, sources

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
MANY = [Label(f"E{number}", f"entity {number}") for number in range(25)]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (file := tmp_path / "small.json").write_text('["city", {"id": "Q1", "label": "company"}]')
    return file


def test_an_argument_is_a_name_a_place_and_a_checksum(small: Path) -> None:
    digest = sha256(small.read_bytes())
    hub = f"hf://datasets/a/b@{'4' * 40}/c@d.jsonl"
    given = (f"b=https://web/a@b.jsonl?x=1@{'2' * 64}", f"d={hub}@{'3' * 64}", f"e=s3://bucket/a@b@{'4' * 64}")
    assert sources(f"c={small}", *given, f"a={small}@{'1' * 64}") == (
        LabelSetSource("a", str(small), "1" * 64),
        LabelSetSource("b", "https://web/a@b.jsonl?x=1", "2" * 64),
        LabelSetSource("c", str(small), digest),
        LabelSetSource("d", hub, "3" * 64),
        LabelSetSource("e", "s3://bucket/a@b", "4" * 64),
    )


def test_sets_from_a_file_and_the_web_are_sealed_listed_and_compared(
    published: Callable[[str], Path], small: Path, tmp_path: Path
) -> None:
    recorded: list[dict[str, Any]] = []

    def record(plugin: Any, checkpoint: Any, auxiliary: Any, cases: Any, **options: Any) -> Recording:
        recorded.extend(case for case in cases if "label_set" in case)
        return nothing()

    (www := tmp_path / "www").mkdir()
    lines = "\n".join(json.dumps({"id": label.id, "label": label.text}) for label in MANY)
    (www / "many.jsonl").write_text(lines)
    with web_server.running(www) as server:
        given = sources(f"small={small}", f"many={server.address}/many.jsonl@{sha256(lines.encode())}")
        done = prepared(PLUGIN, published(PLUGIN), tmp_path / "key", record=record, label_sets=given)
    found = manifest.verify(tmp_path / "key", done.digest)
    assert found.source["label_sets"] == [
        {"name": "many", "sha256": sha256(lines.encode()), "labels": 25},
        {"name": "small", "sha256": sha256(small.read_bytes()), "labels": 2},
    ]
    files = label_sets.files(tmp_path / "key" / label_sets.FOLDER)
    assert [list(label_sets.read(file)) for file in files.values()] == [
        MANY,
        [Label("city", "city"), Label("Q1", "company")],
    ]
    many, few = recorded
    assert (many["label_set"], many["whole"], len(many["ids"])) == ("many", False, 20)
    assert (few["label_set"], few["whole"], few["labels"]) == ("small", True, ["city", "company"])
    # found again, wherever the same content is from, and no other artifact's
    assert prepared(PLUGIN, published(PLUGIN), tmp_path / "key", record=nothing, label_sets=given) == done
    place = f"hf://datasets/a/b@{'1' * 40}/many.jsonl"
    elsewhere = sources(f"small={small}", f"many={place}@{sha256(lines.encode())}")
    assert prepared(PLUGIN, published(PLUGIN), tmp_path / "key", record=nothing, label_sets=elsewhere) == done
    with pytest.raises(Unsupported, match="holds another artifact"):
        prepared(PLUGIN, published(PLUGIN), tmp_path / "key", record=nothing, label_sets=given[:1])
    # what the digest covers cannot be changed
    with files["small"].open("a") as changed:
        changed.write('["a","b"]\n')
    with pytest.raises(ChecksumMismatch, match=r"label_sets/small\.jsonl"):
        manifest.verify(tmp_path / "key", done.digest)


def test_a_set_that_cannot_be_served_is_refused_by_name(
    published: Callable[[str], Path], small: Path, tmp_path: Path
) -> None:
    def refused(*arguments: str, plugin: str = PLUGIN) -> str:
        with pytest.raises((Unsupported, ChecksumMismatch, SourceFileNotFound)) as caught:
            prepared(plugin, published(plugin), tmp_path / "key", record=nothing, label_sets=sources(*arguments))
        assert not (tmp_path / "key").exists()
        return str(caught.value)

    (long := tmp_path / "long.jsonl").write_text(f'"city"\n{json.dumps("🚀" * 256)}\n')
    assert "label set long: label 2: the label is" in refused(f"long={long}")
    assert refused(f"a={small}", plugin="deberta_gliner").startswith("deberta_gliner takes no label sets")
    assert "label set a hashes to" in refused(f"a={small}@{'0' * 64}")
    assert "a name is 1 to 63" in refused(f"A={small}")
    assert "17 label sets; the limit is 16" in refused(*(f"a{number}={small}" for number in range(17)))
    assert "cannot read" in refused(f"a={tmp_path}/none@{'0' * 64}")
    assert "cannot read" in refused(f"a={tmp_path}/none")
    commit, digest = "1" * 40, "0" * 64
    for place in ("https://example.org/a.json", "s3://bucket/a.json", f"hf://datasets/a/b@{commit}/a.json"):
        assert "a URL needs its checksum" in refused(f"a={place}")
    for file in ("a/b@main/a.json", "a/b/a.json", f"b@{commit}/a.json", f"a/b@{commit}/", f"a/b@{commit}/../a.json"):
        for place in (f"hf://{file}", f"hf://datasets/{file}"):
            assert refused(f"a={place}@{digest}").startswith(
                f"label set a: {place!r} names no file of a commit; write hf://"
            )
    for place, lacks in (("", "bucket"), ("bucket", "object"), ("bucket/", "object"), ("bucket/folder/", "object")):
        expected = f"label set a: 's3://{place}' names no {lacks}; write s3://bucket/key"
        assert refused(f"a=s3://{place}@{digest}") == expected
    for scheme in ("S3", "ftp", "file"):
        message = f"--label-set a: a URL begins with http://, https://, hf:// or s3://, not {scheme}://"
        assert refused(f"a={scheme}://host/a.json@{'0' * 64}") == refused(f"a={scheme}://host/a.json") == message
    assert "is given twice" in refused(f"a={small}", f"a={small}")
    # one without an end, and one that a second reader finds empty
    os.mkfifo(pipe := tmp_path / "pipe")
    for endless in (pipe, Path("/dev/zero")):
        assert refused(f"a={endless}") == refused(f"a={endless}@{'0' * 64}")
        assert refused(f"a={endless}").startswith(f"label set a: {endless} is not a regular file")
    # before it is hashed, for which this one would take an hour
    with (large := tmp_path / "large").open("wb") as sparse:
        sparse.truncate(1 << 40)
    for given in (f"a={large}", f"a={large}@{'0' * 64}"):
        assert refused(given) == "label set a: 1099511627776 bytes; the limit is 268435456"
    assert "expected NAME=FILE" in refused("a")


def test_a_set_is_fetched_from_the_web_up_to_the_limit_and_the_connection_closed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, lines, closed = small.stat().st_size, list[dict[str, object]](), list[WebSource]()
    close = WebSource.close

    def closing(source: WebSource) -> None:
        closed.append(source)
        close(source)

    monkeypatch.setattr(WebSource, "close", closing)
    with web_server.running(small.parent) as server:
        web = sources(*(f"{name}={server.address}/small.json@{sha256(small.read_bytes())}" for name in "ac"))
        sets, staging = of(tmp_path / "key", *web, *sources(f"b={small}"))
        monkeypatch.setattr(label_sets, "MOST_BYTES", size)
        sets.bring(Progress(lines.append))
        assert {name: len(list(label_sets.read(file))) for name, file in sets.files.items()} == {"a": 2, "b": 2, "c": 2}
        reported = [(line["phase"], line.get("total"), line["message"]) for line in lines if "message" in line]
        assert ("download", size, "label set a") in reported
        assert [message for phase, _, message in reported if phase == "listing"] == [
            f"label set {name}" for name in "acb"
        ]
        with monkeypatch.context() as full:
            full.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=size, f_frsize=1))
            sets = of(tmp_path / "full", *web)[0]
            with pytest.raises(InsufficientSpace):
                sets.bring(Progress(lines.append))
        monkeypatch.setattr(label_sets, "MOST_BYTES", size - 1)
        lines.clear()
        with pytest.raises(Unsupported, match=f"label set a: {size} bytes; the limit is {size - 1}"):
            of(tmp_path / "other", *web)[0].bring(Progress(lines.append))
        # before it is downloaded
        assert {line["phase"] for line in lines} == {"listing"}
    assert len(closed) == 4
    # what an earlier attempt left is no set of a preparation without any
    assert label_sets.files(staging.label_sets)
    assert of(tmp_path / "key")[0].files == {}


def test_sixteen_sets_are_taken_and_a_file_that_is_gone_is_named(small: Path, tmp_path: Path) -> None:
    sets, _ = of(tmp_path / "key", *sources(*(f"a{number}={small}" for number in range(16))))
    sets.bring(Progress(lambda line: None))
    assert [(one["name"], one["labels"]) for one in sets.describe()] == [
        (f"a{number}", 2) for number in sorted(range(16), key=str)
    ]
    small.unlink()
    with pytest.raises(SourceFileNotFound, match=r"label set a0: cannot read .*small\.json: No such file"):
        sets.bring(Progress(lambda line: None))
    small.mkdir()
    with pytest.raises(SourceFileNotFound, match=r"label set a0: cannot read .*small\.json: Is a directory"):
        sets.bring(Progress(lambda line: None))
    small.rmdir()
    # a file whose bytes cannot be read
    small.symlink_to("/proc/self/mem")
    with pytest.raises(SourceFileNotFound, match=r"label set a0: cannot read .*small\.json: Input/output error"):
        sets.bring(Progress(lambda line: None))


def test_sets_of_an_earlier_attempt_are_made_again_and_no_others(small: Path, tmp_path: Path) -> None:
    for names in ("ab", "bc"):
        sets, _ = of(tmp_path / "key", *sources(*(f"{name}={small}" for name in names)))
        sets.bring(Progress(lambda line: None))
        assert sorted(sets.files) == list(names)


def test_a_set_of_unknown_size_is_downloaded_up_to_the_limit_and_reported_without_one(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list[dict[str, object]]()
    # as a server answers that makes a file while it sends it
    monkeypatch.setattr(WebSource, "completed", lambda source, file, progress: file)
    with web_server.running(small.parent) as server:
        given = sources(f"a={server.address}/small.json@{sha256(small.read_bytes())}")
        of(tmp_path / "key", *given)[0].bring(Progress(lines.append))
        (begun,) = [line for line in lines if line.get("message") == "label set a" and line["phase"] == "download"]
        assert not begun.get("total")
        # it may have no end
        size = small.stat().st_size
        monkeypatch.setattr(label_sets, "MOST_BYTES", size)
        of(tmp_path / "just", *given)[0].bring(Progress(lines.append))
        monkeypatch.setattr(label_sets, "MOST_BYTES", size - 1)
        sets, staging = of(tmp_path / "other", *given)
        with pytest.raises(Unsupported, match=f"label set a: more than {size - 1} bytes, the limit"):
            sets.bring(Progress(lines.append))
        assert list(staging.partial.iterdir()) == []
        # nothing has come of a set that the server refuses to send
        server.always = (400, {})
        with pytest.raises(Unsupported, match="400"):
            of(tmp_path / "refused", *given)[0].bring(Progress(lines.append))


def test_a_preparation_without_sets_seals_none_and_has_no_cases_of_them(tmp_path: Path) -> None:
    sets, staging = of(tmp_path / "key")
    sets.bring(Progress(lambda line: None))
    # of a format and a parity that know nothing of label sets
    unknowing: Any = object()
    sets.seal(unknowing, staging.artifact / manifest.MODEL)
    assert not (staging.artifact / label_sets.FOLDER).exists()
    assert label_set_cases(unknowing, sets.files) == []
