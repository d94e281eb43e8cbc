"""The parity cases of label sets: how they are requested, and that ids are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_plugins.artifact import label_sets
from encoder_plugins.artifact.label_sets import Label
from encoder_plugins.errors import WrongAnswer
from encoder_plugins.families.gliner.cases import FEW_LABELS, SENTENCE, answered
from encoder_plugins.families.gliner.parity import PARITY, POOLING

SIZES = {"few": FEW_LABELS, "many": FEW_LABELS + 1}


def made(folder: Path) -> list[dict[str, Any]]:
    """The cases of two sets, with what a library found: nothing."""
    for name, size in SIZES.items():
        labels = [Label(f"Q{number}", f"label {number}") for number in range(size)]
        label_sets.write(labels, folder / f"{name}{label_sets.SUFFIX}")
    words = [[0, 6], [7, 12]]
    cases = PARITY.label_set_cases(label_sets.files(folder))
    return [dict(one) for case in cases for one in answered(case, width=None, words=words, entities=[])]


def test_a_set_of_few_labels_is_requested_as_a_whole_and_another_by_ids(tmp_path: Path) -> None:
    few, few_scores, many, many_scores = made(tmp_path)
    ids = [f"Q{number}" for number in range(FEW_LABELS)]

    def sent(*together: dict[str, Any]) -> dict[str, Any]:
        data = PARITY.body(together, POOLING)["data"]
        return {name: data.get(name) for name in ("label_set", "candidates_per_text", "labels", "labels_per_text")}

    nothing = {"labels": None, "labels_per_text": None}
    assert PARITY.body([few], POOLING)["data"]["text"] == SENTENCE
    assert sent(few) == {"label_set": "few", "candidates_per_text": None, **nothing}
    assert sent(many) == {"label_set": "many", "candidates_per_text": [ids], **nothing}
    assert sent(many, many) == {"label_set": "many", "candidates_per_text": [ids] * 2, **nothing}
    assert sent(few_scores) == {"label_set": "few", "candidates_per_text": None, **nothing}
    # a request for each text of a group of spans
    assert sent(many_scores) == {"label_set": "many", "candidates_per_text": [ids] * 2, **nothing}
    groups = [PARITY.group(case, POOLING) for case in (few, few_scores, many, many_scores)]
    assert len(set(groups)) == 4


@pytest.mark.parametrize(("id_", "wrong"), [("Q3", False), ("Q4", True), (None, True), ("x" * 9000, True)])
def test_an_entity_has_the_id_of_its_label(id_: str | None, wrong: bool, tmp_path: Path) -> None:
    case = made(tmp_path)[2]
    logits = np.full((2, FEW_LABELS, 3), -9.0, np.float32)
    logits[1, 3] = 9.0
    entity = {"start": 7, "end": 12, "text": SENTENCE[7:12], "label": "label 3", "score": 1 / (1 + np.exp(-9.0))}
    given = entity if id_ is None else {**entity, "id": id_}
    (got,) = PARITY.outputs(json.dumps({"data": {"entities": [given]}}).encode(), [case], POOLING)
    expected = {"logits": logits, "logits_bfloat16": logits}
    # the library's entities have no ids
    case["entities"] = [entity]
    if wrong:
        with pytest.raises(WrongAnswer, match="label 3 has the id") as caught:
            PARITY.compare(case, got, expected)
        # quoted in part: the verdict has room for two kilobytes
        assert len(str(caught.value)) < 250
    else:
        compared = PARITY.compare(case, got, expected)
        assert compared.metrics["decoded_shift"] == 0.0
        assert compared.notes == ()
