"""Case 8: each plugin of the catalogue through the operator: apply, Verified, and the original library's answers to 16 clients.

The checkpoints are small ones of random weights, built here and put on the tests' hub. What the library says of them is
recorded here, too, by its own code; the cluster's prep records for itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from encoder_checkpoints import gliner, samples, stanza
from encoder_checkpoints.samples import Sample
from encoder_platform import client, manifests
from encoder_platform.kube import Body
from encoder_platform.publish import publish
from encoder_platform.space import Space
from encoder_plugins.artifact import reference as references
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.parity import verdict as comparison
from encoder_plugins.parity.plan import Batch
from encoder_plugins.parity.protocol import Parity
from encoder_plugins.parity.verdict import Finding
from encoder_plugins.plugin import resolve
from encoder_plugins.prep.tests.changed_checkpoint import change

CLIENTS = 16
# test_apply_to_answer has its checkpoint, as it is published
ELSEWHERE = {"sentence_transformer"}
SAMPLES = [pytest.param(sample, id=sample.name) for sample in samples.samples() if sample.name not in ELSEWHERE]
# one comes as the oldest GLiNER checkpoints do: a pickle, with the encoder's files in another repository
BARE = "deberta_gliner"
# one comes as gliner-x is published, and is split by stanza's tokenizers of these languages
SPLIT = "mt5_gliner"
LANGUAGES = ("en", "ja")
# those whose plugin takes label sets have one from a ConfigMap, and one from the hub
SET, FROM_HUB = "demo", "from-hub"


def applied(space: Space, sample: Sample, folder: Path) -> str:
    """Publish the sample, and apply an EncoderModel of it; return the model's name."""
    name = sample.name.replace("_", "-")
    hub = {"endpoint": manifests.HUB_ENDPOINT}
    if sample.name == SPLIT:
        revision = publish(space.kube, f"demo/{name}", sample.build(folder / "published"))
        auxiliary = [
            {"repo": f"stanfordnlp/{path.name}", "revision": publish(space.kube, f"stanfordnlp/{path.name}", path)}
            for path in tokenizers(folder)
        ]
        source: Body = {"huggingFace": {"repo": f"demo/{name}", "revision": revision, **hub}, "auxiliary": auxiliary}
        parameters: Body = {"wordsSplitter": "stanza", "languages": list(LANGUAGES)}
        # stanza publishes its tokenizers as pickles
        prepare = {"allowPickle": True, "parameters": parameters}
        space.apply_model(name, plugin=sample.name, source=source, prepare=prepare)
        return name
    if sample.name != BARE:
        revision = publish(space.kube, f"demo/{name}", sample.build(folder / "published"))
        from_hub = {"huggingFace": {"repo": f"demo/{name}", "revision": revision, **hub}}
        sets = {"labelSets": label_sets(space, sample, folder)} if sample.plugin.label_sets else {}
        space.apply_model(name, plugin=sample.name, source=from_hub, **sets)
        return name
    encoder = folder / "encoder"
    bare = gliner.build(folder / "bare", BARE, weights="pickle", auxiliary=encoder)
    revision = publish(space.kube, "demo/bare", bare)
    base = gliner.FAMILIES[BARE].base
    auxiliary = [{"repo": base, "revision": publish(space.kube, base, encoder)}]
    source = {"huggingFace": {"repo": "demo/bare", "revision": revision, **hub}, "auxiliary": auxiliary}
    space.apply_model(name, plugin=BARE, source=source, prepare={"allowPickle": True})
    return name


def for_stanza(sample: Sample) -> Sample:
    """Return a sample of which the checkpoint names stanza, as gliner-x does."""

    def build(folder: Path) -> Path:
        built = sample.build(folder)
        change(built, words_splitter_type="stanza")
        return built

    return replace(sample, build=build)


def tokenizers(folder: Path) -> list[Path]:
    """Return the repositories of the tokenizers of LANGUAGES."""
    repositories = stanza.build(folder / "stanza")
    return [repositories[language] for language in LANGUAGES]


def by_stanza(folder: Path) -> list[str]:
    """Return the options of `encoder-plugins prepare` that stand for what `applied` says of SPLIT."""
    parameters = ("--parameter", "wordsSplitter=stanza", "--parameter", f"languages={','.join(LANGUAGES)}")
    auxiliary = [part for path in tokenizers(folder) for part in ("--auxiliary", str(path))]
    return ["--allow-pickle", *parameters, *auxiliary]


def assert_each_text_has_its_language(space: Space, name: str, sample: Sample) -> None:
    """Post texts in a language that was prepared, in one that was not, and with a language named."""
    texts = ["東京は日本の首都です。田中さんは大阪に住んでいます。", "Где живёт сейчас Анна Каренина, и куда она едет?"]
    data = {field: value for field, value in sample.demo.items() if field != "text"} | {"texts": texts}
    answer = space.post({"model": name, "data": data}, name)
    assert answer.status == 200, answer
    found = [(one["language"], one.get("language_fallback", False)) for one in answer.body["data"]["results"]]
    assert found == [("ja", False), ("en", True)]
    named = space.post({"model": name, "data": {**sample.demo, "language": "ja"}}, name)
    assert (named.status, named.body["data"]["language"]) == (200, "ja")
    refused = space.post({"model": name, "data": {**sample.demo, "language": "de"}}, name)
    assert (refused.status, "data.language" in json.dumps(refused.body)) == (400, True), refused


def label_sets(space: Space, sample: Sample, folder: Path) -> list[Body]:
    """Put the labels of the sample's own request into a ConfigMap and on the hub; return the entries of spec.labelSets."""
    content = "\n".join(json.dumps({"id": f"Q{number}", "label": label}) for number, label in labelled(sample))
    metadata = {"name": SET, "namespace": space.name}
    space.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"labels.jsonl": content}})
    dataset = folder / "dataset"
    dataset.mkdir()
    (dataset / "labels.jsonl").write_text(content)
    revision = publish(space.kube, "datasets/demo/labels", dataset)
    on_hub = {"repo": "demo/labels", "revision": revision, "path": "labels.jsonl"}
    digest = hashlib.sha256(content.encode()).hexdigest()
    return [
        {"name": SET, "sha256": digest, "configMapRef": {"name": SET}},
        {"name": FROM_HUB, "sha256": digest, "huggingFace": on_hub},
    ]


def labelled(sample: Sample) -> list[tuple[int, str]]:
    """Return the labels of the sample's own request, numbered."""
    return list(enumerate(sample.demo["labels"]))


def assert_set_stands_for_labels(space: Space, name: str, sample: Sample, model: Body) -> None:
    """Post the sample's own request with the name of each set, and with ids of it, instead of labels."""
    assert [entry["name"] for entry in model["status"]["artifact"]["labelSets"]] == [SET, FROM_HUB]
    plain = space.post({"model": name, "data": dict(sample.demo)}, name).body["data"]["entities"]
    ids = {label: f"Q{number}" for number, label in labelled(sample)}
    expected = [{**entity, "id": ids[entity["label"]]} for entity in plain]
    data = {field: value for field, value in sample.demo.items() if field != "labels"}
    for more in ({}, {"candidates_per_text": [list(ids.values())]}):
        for name_of_set in (SET, FROM_HUB):
            answer = space.post({"model": name, "data": data | more | {"label_set": name_of_set}}, name)
            assert (answer.status, answer.body["data"]["entities"]) == (200, expected), answer
    refused = space.post({"model": name, "data": data | {"label_set": "other"}}, name)
    assert (refused.status, f"it has {SET}, {FROM_HUB}" in json.dumps(refused.body)) == (400, True), refused


def post_all(space: Space, name: str, parity: Parity, reference: Reference, clients: int) -> list[Finding]:
    """Send every case in a request of its own, with the given number of clients."""
    variant = parity.variants()[0]
    bodies = [{"model": name, **parity.body([case], variant)} for case in reference.cases]
    answers = client.post_many(space.kube, space.name, space.url(name), list(bodies), clients=clients)
    assert [answer.status for answer in answers] == [200] * len(answers), worst(answers)
    findings = [
        finding
        for case, answer in zip(reference.cases, answers, strict=True)
        for finding in comparison.examine(
            parity, reference, "cluster", Batch((case,), variant), json.dumps(answer.body).encode()
        )
    ]
    return [*findings, *comparison.pooled(parity, "cluster", findings)]


def worst(answers: Sequence[client.Answer]) -> client.Answer:
    return next(answer for answer in answers if answer.status != 200)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sample", SAMPLES)
def test_a_plugin_answers_as_its_library(sample: Sample, space: Space, tmp_path: Path) -> None:
    options: list[str] = []
    if sample.name == SPLIT:
        sample, options = for_stanza(sample), by_stanza(tmp_path)
    name = applied(space, sample, tmp_path)
    # the library's answers are recorded while the cluster prepares
    reference = references.read(samples.prepare(sample, tmp_path, *options))
    parity: Parity = resolve(sample.plugin.parity)
    model = space.wait_ready(name)
    assert model["status"]["parity"]["result"] == "Passed"
    findings = post_all(space, name, parity, reference, CLIENTS)
    verdict = comparison.judge(findings, parity.tolerances["float32"], reference, {})
    assert (verdict.result, verdict.cases) == ("Passed", len(reference.cases)), verdict
    answer = space.post({"model": name, "data": dict(sample.demo)}, name)
    assert answer.status == 200, answer
    assert space.post({"model": name, "data": {}}, name).status == 400
    if sample.plugin.label_sets:
        assert_set_stands_for_labels(space, name, sample, model)
    if sample.name == SPLIT:
        assert_each_text_has_its_language(space, name, sample)
