"""Checkpoints that PyLate 1.6 itself has written are served as those that the other tests rewrite into its format.

The engine tests of the plugins compare rows and scores with PyLate's; nothing here needs an engine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from encoder_checkpoints.answer_cache import library_answer
from encoder_checkpoints.original import original
from encoder_plugins import catalog
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.conversion import PROJECTION_WEIGHTS
from encoder_plugins.families.retrieval.tokens import TextTokenizer
from encoder_plugins.models.colbert.tests import tiny as colbert
from encoder_plugins.models.lfm2_colbert.tests import tiny as lfm2
from encoder_plugins.models.moderncolbert.tests import tiny as modern
from encoder_plugins.plugin import resolve

ORACLE = "encoder_plugins.families.retrieval.tests.pylate_oracle"
TINY = {"moderncolbert": modern, "lfm2_colbert": lfm2, "colbert": colbert}
TEXTS = ["bread", "  \n\twith space around it.\t\n ", " ", "?!", "a [MASK] b"]

pytestmark = pytest.mark.filterwarnings("ignore")


# the last two leave to PyLate's defaults what PyLate then writes
@pytest.mark.parametrize(
    ("plugin", "form"),
    [
        *((plugin, "pylate") for plugin in TINY),
        ("moderncolbert", "pylate-defaults"),
        ("moderncolbert", "pylate-three-dense"),
    ],
)
def test_a_checkpoint_that_pylate_saved_is_converted_to_the_same_model(plugin: str, form: str, tmp_path: Path) -> None:
    published, saved = TINY[plugin].build(form, tmp_path), tmp_path / "saved"
    original("pylate").call(f"{ORACLE}:saved", str(published), saved)
    checkpoint = resolve(catalog.get(plugin).checkpoint)
    models = []
    for source in (published, saved):
        models.append(tmp_path / f"model-{source.name}")
        models[-1].mkdir()
        checkpoint.check(source, {})
        checkpoint.convert(source, {}, models[-1])
    one, other = map(read_served, models)
    assert one == other
    assert one.strips
    projections = [(model / PROJECTION_WEIGHTS).read_bytes() for model in models]
    assert projections[0] == projections[1]
    for kind in ("query", "document"):
        ids = [[text.ids for text in TextTokenizer(model, one)(TEXTS, kind)] for model in models]
        assert ids[0] == ids[1]
        rows = library_answer("pylate", f"{ORACLE}:encoded", str(saved), TEXTS, kind)
        assert [len(each) for each in rows] == [text.rows for text in TextTokenizer(models[1], other)(TEXTS, kind)]


def test_pooled_rows_are_those_of_pylate(tmp_path: Path) -> None:
    import torch

    from encoder_plugins.families.retrieval import token_pooling

    published = modern.build("pylate", tmp_path)
    words = [
        " ".join(["river", "bread", "music", "garden", "weather"][number % 5 :: 2] * number) for number in (3, 9, 20)
    ]
    plain, fewer = (
        library_answer("pylate", f"{ORACLE}:encoded", str(published), words, "document", factor) for factor in (1, 2)
    )
    for rows, expected in zip(plain, fewer, strict=True):
        found = token_pooling.pooled(torch.from_numpy(rows), 2.0).numpy()
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        # PyLate leaves means as short as they are; scores of such rows are lower, and rows of length 1 are what indexes expect
        np.testing.assert_allclose(found, expected / lengths, atol=1e-5)
