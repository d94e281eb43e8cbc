"""What gliner2 cannot compute is refused by its case, before an artifact is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_checkpoints import gliner2
from encoder_plugins import catalog
from encoder_plugins.errors import Unsupported
from encoder_plugins.prep.pipeline import prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Request

pytestmark = pytest.mark.usefixtures("one_recorder")


def test_a_case_longer_than_the_encoders_positions_is_refused_with_the_field(tmp_path: Path) -> None:
    # the library itself would end with an error of torch's
    source = gliner2.build(tmp_path / "source", encoder={"position_biased_input": True, "max_position_embeddings": 160})
    request = Request(plugin=catalog.get("deberta_gliner2"), source=str(source), output=tmp_path / "key")
    with pytest.raises(Unsupported, match=r"the case \S+: .*; encoder_config's max_position_embeddings is 160"):
        prepare(request, Progress(lambda line: None))
