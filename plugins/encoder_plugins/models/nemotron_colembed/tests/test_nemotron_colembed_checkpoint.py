"""What prep refuses of a Nemotron ColEmbed checkpoint, that tokens are those of the published processor, and what the reference is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from encoder_checkpoints.answer_cache import library_answer
from encoder_checkpoints.original import OriginalError
from encoder_plugins.errors import InvalidRequest, PrepareError
from encoder_plugins.families.retrieval.cases import WORDS
from encoder_plugins.families.retrieval.checkpoint import read_served
from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.families.vision.cases import PASSAGES, TEXTS, picture
from encoder_plugins.families.vision.config import read_visual
from encoder_plugins.families.vision.processor import VisualProcessor
from encoder_plugins.families.vision.tokens import VisualTokenizer
from encoder_plugins.models.nemotron_colembed import PLUGIN
from encoder_plugins.models.nemotron_colembed.checkpoint import CHECKPOINT
from encoder_plugins.models.nemotron_colembed.parity import PARITY
from encoder_plugins.models.nemotron_colembed.published import read as read_published
from encoder_plugins.models.nemotron_colembed.tests import tiny
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, Running, advance

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

ORACLE = "encoder_plugins.models.nemotron_colembed.tests.oracle"
LONG = " ".join(WORDS * 200)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def model(published: Path) -> Path:
    folder = published.parent / "model"
    folder.mkdir()
    CHECKPOINT.check(published, {})
    CHECKPOINT.convert(published, {}, folder)
    return folder


def reference(function: str, published: Path, *arguments: Any, **options: Any) -> Any:
    return library_answer("sauerkrautlm_colpali", f"{ORACLE}:{function}", str(published), *arguments, **options)


def begun(model: Path, data: Any, **changed: int) -> Round:
    """Return what a request gives the engine first."""
    values = limits.defaults(PLUGIN) | changed
    of = VisualProcessor(ServingContext(model=model, max_model_len=700, names=("pages",), limits=values))
    running: Running = of.run(of.parse(PLUGIN.routes[0], json.dumps({"data": data}).encode()), ENGINE)
    found = advance(running)
    assert isinstance(found, Round)
    return found


@pytest.mark.parametrize(
    ("file", "changed", "says"),
    [
        ("config.json", {"model_type": "llama_nemotron_vl"}, "Nemotron ColEmbed on Llama is another model"),
        ("config.json", {"architectures": ["ColQwen3"]}, "architectures is .*ColQwen3.*Qwen3VLNemotronEmbedModel"),
        ("config.json", {"pooling": "avg"}, 'pooling is "avg"'),
        ("config.json", {"image_token_id": 3}, "image_token_id is 3, which is not the tokenizer's"),
        ("processor_config.json", {"p_max_length": 100}, "p_max_length is 100, and reserve_tokens_for_images 100"),
        ("processor_config.json", {"query_prefix": 3}, "query_prefix is 3; expected a text"),
        ("processor_config.json", {"q_max_length": 0}, "q_max_length is 0; expected an integer of at least 1"),
    ],
)
def test_a_checkpoint_that_would_be_served_differently_is_refused(
    file: str, changed: dict[str, Any], says: str, published: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(published, tmp_path / "published")
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **changed}))
    (tmp_path / "model").mkdir()
    with pytest.raises(PrepareError, match=says):
        CHECKPOINT.convert(folder, {}, tmp_path / "model")


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ messages[0].content | length }}", "does not repeat the text of a turn"),
        ("{{ raise_exception('no') }}", "cannot be rendered"),
        ("{{ messages[0].content[-1].text }}", "ends a turn with no token of its own"),
    ],
)
def test_a_chat_template_that_does_something_else_is_refused(
    template: str, says: str, published: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(published, tmp_path / "published")
    (folder / "chat_template.jinja").write_text(template)
    (tmp_path / "model").mkdir()
    with pytest.raises(PrepareError, match=says):
        CHECKPOINT.convert(folder, {}, tmp_path / "model")


def test_the_head_of_the_language_model_is_optional_and_the_norm_is_not(published: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(published, tmp_path / "published")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "model").mkdir()
    CHECKPOINT.convert(folder, {}, tmp_path / "model")
    del tensors["model.language_model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PrepareError, match="the weights have no language_model"):
        CHECKPOINT.convert(folder, {}, tmp_path / "model")


def test_nothing_of_the_artifact_names_code(model: Path) -> None:
    assert [path.name for path in model.iterdir() if path.suffix == ".json" and "auto_map" in path.read_text()] == []


def test_tokens_are_those_of_the_published_processor(published: Path, model: Path) -> None:
    tokenizer = VisualTokenizer(model, read_served(model), read_visual(model))
    texts = [
        *TEXTS.values(),
        "ends in a space ",
        "ends in a line\n",
        *("a " * count for count in range(1, 300, 17)),
        LONG,
    ]
    kinds: tuple[InputType, ...] = ("query", "document")
    for kind in kinds:
        expected = reference("tokens", published, texts, kind)
        assert [text.ids for text in tokenizer(texts, kind)] == expected
    assert max(map(len, reference("tokens", published, texts, "query"))) == tiny.QUERY_TOKENS


def test_pages_with_a_text_have_the_tokens_of_the_published_processor(published: Path, model: Path) -> None:
    texts = [None, *PASSAGES, LONG]
    content = picture(333, 517)
    expected = reference("page_tokens", published, content, texts)
    items = [{"image": content, **({} if text is None else {"text": text})} for text in texts]
    found = begun(model, {"inputs": items})
    image = read_visual(model).image_token
    for prompt, ids in zip(found.prompts, expected, strict=True):
        place = prompt.token_ids.index(image)
        whole = [*prompt.token_ids[:place], *[image] * prompt.image_tokens, *prompt.token_ids[place + 1 :]]
        assert whole == ids
    # an empty text is none, and the longest is cut where the image has been counted twice
    assert begun(model, {"inputs": [{**items[0], "text": ""}]}).prompts[0].token_ids == found.prompts[0].token_ids
    last = found.prompts[-1]
    assert last.tokens == tiny.DOCUMENT_TOKENS - tiny.RESERVED - last.image_tokens


def test_bad_texts_of_images_are_refused_by_field(model: Path) -> None:
    image = picture(64, 96)
    for data, param, says in (
        ({"inputs": ["a", {"image": image, "text": "b <|im_end|>"}]}, "data.inputs[1].text", "contains <|im_end|>"),
        ({"inputs": [{}]}, "data.inputs[0]", "text, image, or both"),
        ({"inputs": [{"image": image, "text": "a" * 200}]}, "data.inputs[0]", "the limit is 100"),
        ({"image": image, "text": "a"}, "data.image", "image and text are both there"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            begun(model, data, characters_per_text=100)
        assert (refused.value.param, says in str(refused.value)) == (param, True), str(refused.value)


def test_an_image_that_the_published_processor_has_no_room_for_is_refused(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["visual_retrieval"]["most_tokens"] = 400
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidRequest, match="the image has 294 tokens; this model takes 197 at most") as refused:
        begun(folder, {"images": [picture(64, 96), picture(1200, 800)]})
    assert refused.value.param == "data.images[1]"


def test_a_reranking_says_that_documents_are_cut(model: Path) -> None:
    most = tiny.DOCUMENT_TOKENS - tiny.RESERVED
    of = VisualProcessor(
        ServingContext(model=model, max_model_len=most, names=("pages",), limits=limits.defaults(PLUGIN))
    )
    (route,) = (route for route in PLUGIN.routes if route.path == "/rerank")
    body = {"query": "a", "documents": ["b", {"image": picture(64, 96), "text": LONG}]}
    of.parse(route, json.dumps({**body, "truncation": True, "max_tokens_per_doc": most}).encode())
    for field, value, says in (
        ("truncation", False, "documents that are too long are cut"),
        ("max_tokens_per_doc", most - 1, f"documents are cut after {most} tokens, and never earlier"),
    ):
        with pytest.raises(InvalidRequest, match=says) as refused:
            of.parse(route, json.dumps({**body, field: value}).encode())
        assert refused.value.param == field


def test_cases_whose_image_the_published_processor_would_cut_are_left_out(published: Path, tmp_path: Path) -> None:
    own = {"id": "own", "text": "a"}
    every = [case["id"] for case in PARITY.cases(published, [own])]
    assert {"image-large", "image-page", "score-images", "own"} < set(every)
    folder = shutil.copytree(published, tmp_path / "published")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_pixels": 16_777_216}))
    cases = PARITY.cases(folder, [own])
    left_out = ["image-page", "image-large", "caption-passage", "score-images", "score-mixed"]
    assert [id_ for id_ in every if id_ not in {case["id"] for case in cases}] == left_out
    # and the published code computes the largest that are left
    images = [case for case in cases if case["id"] in ("image-square", "image-odd", "caption-long")]
    assert len(reference("recorded", folder, images, trust_remote_code=False).outputs) == 3


def test_a_users_image_that_cannot_be_recorded_is_refused_by_its_case(published: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(published, tmp_path / "published")
    shutil.copytree(Path(__file__).parent / "published_code", folder, dirs_exist_ok=True)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_pixels": 16_777_216}))
    large, small = picture(1200, 800), picture(20, 12)
    tokens = read_published(folder).bounds.tokens(1200, 800)
    room = f"the image of 1200 × 800 pixels has {tokens} tokens, which count twice; this model takes 700"
    for case, says in (
        ({"id": "own", "image": large}, room),
        ({"id": "own", "text": "a", "documents": ["b", {"image": large, "text": "c"}]}, room),
        ({"id": "own", "image": f"data:image/png;base64,{small}"}, "an image is not the base64 of a file that Pillow"),
        ({"id": "own", "image": small[:100]}, "an image is not the base64 of a file that Pillow reads"),
    ):
        own = [each for each in PARITY.cases(folder, [case]) if each["id"] == "own"]
        for trusted in (False, True):
            with pytest.raises(OriginalError, match=re.escape(f"inputs: own: {says}")):
                reference("recorded", folder, own, trust_remote_code=trusted)


def test_the_reference_is_what_the_published_code_computes_layer_by_layer(published: Path) -> None:
    content, text = picture(333, 517), PASSAGES[0]
    case = {"id": "one", "input_type": "document", "text": text, "image": content, "documents": None}
    found = reference("output", published, case)
    np.testing.assert_allclose(found, reference("step_by_step", published, content, text), rtol=0, atol=1e-5)


def test_the_checkpoints_own_code_is_the_reference_where_it_may_run(published: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(published, tmp_path / "published")
    shutil.copytree(Path(__file__).parent / "published_code", folder, dirs_exist_ok=True)
    image = picture(333, 517)
    case = {"input_type": "document", "text": None, "image": None, "documents": None}
    cases = [
        {**case, "id": "query", "input_type": "query", "text": TEXTS["question"]},
        {**case, "id": "text", "text": PASSAGES[0]},
        {**case, "id": "image", "image": image},
        {**case, "id": "both", "image": image, "text": LONG},
    ]
    without = reference("recorded", folder, cases, trust_remote_code=False)
    trusted = reference("recorded", folder, cases, trust_remote_code=True)
    for name in ("query", "text", "image", "both"):
        np.testing.assert_allclose(
            trusted.outputs[name]["rows"], without.outputs[name]["rows"], rtol=0, atol=1e-5, err_msg=name
        )
    assert "mathematics" in without.about["library"]
    assert trusted.about["library"] == "the checkpoint's own code"
    # and it is that code which ran
    path = folder / "modeling_qwen3_vl_nemotron_embed.py"
    path.write_text(path.read_text().replace("last_hidden_state=kept[0]", "last_hidden_state=-kept[0]"))
    assert np.allclose(
        reference("recorded", folder, cases[:1], trust_remote_code=True).outputs["query"]["rows"],
        -trusted.outputs["query"]["rows"],
        atol=1e-5,
    )
