"""Requests that name a label set, without an engine: they are those that list its labels, or they are refused by field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import payload
from encoder_plugins.families.gliner.processor import Parsed
from encoder_plugins.families.gliner.request import Entity
from encoder_plugins.families.gliner.set_requests import START_SECONDS
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.encodings import encode_base64
from encoder_plugins.models.deberta_gliner_linker import PLUGIN
from encoder_plugins.models.deberta_gliner_linker.checkpoint import CHECKPOINT
from encoder_plugins.models.deberta_gliner_linker.tests.bi_engine import DIGEST, LABELS, TEXTS
from encoder_plugins.plugin import resolve
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, advance

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

SETS = {
    "catalogue": [Label(f"Q{number}", label) for number, label in enumerate(LABELS)],
    "large": [Label(f"E{number}", f"entity {number}") for number in range(1_001)],
}
IDS = {label.text: label.id for label in SETS["catalogue"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, published: Callable[[str], Path]) -> Path:
    """An artifact's folder: its model, and its label sets."""
    found = tmp_path_factory.mktemp("artifact")
    CHECKPOINT.convert(published(PLUGIN.name), {}, found / "model")
    (sets := found / label_sets.FOLDER).mkdir()
    for name, labels in SETS.items():
        label_sets.write(labels, sets / f"{name}{label_sets.SUFFIX}")
    return found


def processor(folder: Path, *, sets: bool = True, dtype: str = "float32", **values: int) -> Any:
    context = ServingContext(
        model=folder / "model",
        max_model_len=512,
        names=("m",),
        limits=limits.defaults(PLUGIN) | values,
        dtype=dtype,
        digest=DIGEST,
        label_sets=folder / label_sets.FOLDER if sets else None,
    )
    return resolve(PLUGIN.processor)(context)


def parsed(of: Any, data: dict[str, Any]) -> Parsed:
    found: Parsed = of.parse(PLUGIN.routes[0], bodies.encode(data))
    return found


def test_the_prompts_are_those_of_the_labels_and_the_entities_have_ids(folder: Path) -> None:
    of, data = processor(folder, labels=8), {"texts": TEXTS, "threshold": 0.3}
    by_name = parsed(of, {**data, "label_set": "catalogue"})
    assert by_name.prompts == parsed(of, {**data, "labels": LABELS}).prompts
    # a whole set is read once for all requests
    names = of.label_lists(by_name.data, 1)[0]
    assert of.label_lists(by_name.data, 1)[0] is names
    assert of._labels(by_name.data, 0, names) is of._labels(by_name.data, 1, names)
    lists = [LABELS[:3], LABELS[2:7], LABELS[::-1], ["river"]]
    # an id that comes again counts once
    candidates = [[IDS[label] for label in labels] for labels in (LABELS[:3], LABELS[2:7], LABELS[::-1])]
    candidates.append(["Q7", "Q7"])
    by_id = parsed(of, {**data, "label_set": "catalogue", "candidates_per_text": candidates})
    assert by_id.prompts == parsed(of, {**data, "labels_per_text": lists}).prompts
    entities = [Entity(start=0, end=1, text="T", label=label, score=0.5) for label in ("river", "city", "river")]
    assert [entity.id for entity in of.named(by_id.data, 0, entities)] == ["Q7", "Q2", "Q7"]
    # without a set they have the ids of their candidates, or none
    own = parsed(
        of, {"text": "a", "candidates_per_text": [[{"id": "X1", "label": "river"}, {"id": "X2", "label": "city"}]]}
    )
    assert [entity.id for entity in of.named(own.data, 0, entities)] == ["X1", "X2", "X1"]


def test_vectors_are_made_before_the_first_request_as_far_as_there_is_room_and_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = 96

    def started(of: Any, **options: float) -> tuple[list[str], list[int]]:
        """Return the sentences, and the labels of each prompt."""
        starting, counts = of.start(ENGINE, **options), []
        step: Any = advance(starting)
        while isinstance(step, Round):
            (prompt,) = step.prompts
            counts.append(len(payload.decode_runs(prompt.parameters or {})))
            step = advance(starting, [torch.zeros(counts[-1], width)])
        return list(step), counts

    assert START_SECONDS == 60.0
    whole = ["Label set catalogue: 8 of 8 labels are encoded", "Label set large: 1001 of 1001 labels are encoded"]
    some = [whole[0], "Label set large: 92 of 1001 labels are encoded; 92 fit into the cache"]
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        of = processor(folder, dtype=dtype)
        for room, sentences, most in ((1_009, whole, 1_009), (100, some, 100)):
            monkeypatch.setattr(payload, "LABEL_CACHE_BYTES", room * width * size)
            found, counts = started(of)
            assert (found, sum(counts)) == (sentences, most)
        late, counts = started(of, seconds=-1.0)
        assert (late[0], counts) == ("Label set catalogue: 0 of 8 labels are encoded; time was up", [])
    assert started(processor(folder, sets=False)) == ([], [])


VECTORS = {"digest": DIGEST, "vectors": {"x": encode_base64(np.zeros((1, 96), np.float32))[0]}}
CANDIDATES = "data.candidates_per_text"
TWO = {"text": None, "texts": ["a", "b"], "label_set": "large"}


@pytest.mark.parametrize(
    ("data", "values", "param", "message"),
    [
        ({"label_set": "other"}, {}, "data.label_set", "no label set 'other'; it has catalogue, large"),
        ({"label_set": "other"}, {"sets": False}, "data.label_set", "'other'; it was prepared without any"),
        ({}, {}, "data.labels", "one of labels, labels_per_text, candidates_per_text and label_set"),
        ({"label_set": "large"}, {}, "data.label_set", "1001 labels; the limit is 1000"),
        ({"label_set": "catalogue"}, {"label_tokens": 8}, "data.label_set", "the limit is 8"),
        ({"label_set": "catalogue", "labels": ["x"]}, {}, "data.label_set", "labels and label_set are both there"),
        ({"label_set": "catalogue", "labels_per_text": [["x"]]}, {}, "data.label_set", "labels_per_text and label_set"),
        ({"label_set": "catalogue", "label_vectors": VECTORS}, {}, "data.label_set", "label_vectors and label_set"),
        ({"label_set": "catalogue", "encode": "labels", "text": None}, {}, "data.label_set", "with encode"),
        ({"label_set": "large", "candidates_per_text": [["E1", "Q1"]]}, {}, f"{CANDIDATES}[0][1]", "has no id 'Q1'"),
        (
            {"label_set": "large", "candidates_per_text": [["E1", {"id": "E2", "label": "entity 2"}]]},
            {},
            f"{CANDIDATES}[0][1]",
            "is an id of the set large",
        ),
        ({"candidates_per_text": [["E1"]]}, {}, f"{CANDIDATES}[0][0]", "needs label_set"),
        ({"label_set": "large", "candidates_per_text": []}, {}, CANDIDATES, "0 lists of candidates for 1 texts"),
        (
            {"label_set": "large", "candidates_per_text": [["E1", "E2", "E3"]]},
            {"labels": 2},
            f"{CANDIDATES}[0]",
            "3 candidates; the limit is 2",
        ),
        ({**TWO, "candidates_per_text": [["E1", "E2"], ["E3"]]}, {"labels": 2}, CANDIDATES, "more than 2 different labels"),
    ],
)  # fmt: skip
def test_a_bad_request_with_a_set_is_refused_by_field(
    folder: Path, data: dict[str, Any], values: dict[str, Any], param: str, message: str
) -> None:
    of = processor(folder, **values)
    with pytest.raises(InvalidRequest) as caught:
        parsed(of, {"text": "Tim Cook leads Apple.", **data})
    assert (caught.value.param, message in caught.value.message) == (param, True), caught.value.message


def test_as_many_candidates_as_the_limit_are_taken(folder: Path) -> None:
    data = {**TWO, "candidates_per_text": [["E1", "E2"], ["E2", "E1"]]}
    assert len(parsed(processor(folder, labels=2), data).parts) == 2
