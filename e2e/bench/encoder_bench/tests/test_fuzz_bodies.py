"""The bodies that fuzzing sends: the same for the same seed, of every kind, and about the plugin's own fields."""

import base64
import json
from collections import Counter
from typing import Annotated, Any

import pytest
from msgspec import Meta

from encoder_bench import fuzz
from encoder_bench.fuzz import schema_of
from encoder_bench.fuzz_bodies import Maker, Shape
from encoder_plugins import catalog
from encoder_plugins.artifact.reference import Reference
from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.vision import request
from encoder_plugins.families.vision.request import Rules, VisualLimits, VisualRequest
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.body import Data, Envelope
from encoder_plugins.plugin import resolve
from encoder_plugins.serving import limits

BODY_BYTES = 20_000


class Inner(Data, frozen=True):
    low: Annotated[int, Meta(ge=0)]


class Request(Data, frozen=True):
    text: str
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    inner: list[Inner] | None = None
    named: dict[str, Inner] | None = None
    pairs: list[tuple[str, str]] | None = None


def maker(seed: int = 1) -> Maker:
    schema = schema_of(Envelope[Request])
    good: list[Any] = [
        {"data": {"text": "hello", "share": 0.25}},
        {"data": {"text": "b", "inner": [{"low": 3}]}},
    ]
    return Maker([Shape("/pooling", schema, good)], seed, BODY_BYTES)


def test_a_seed_makes_the_same_bodies_and_another_makes_others() -> None:
    assert list(maker().bodies(300)) == list(maker().bodies(300))
    assert list(maker(2).bodies(300)) != list(maker().bodies(300))


def test_every_kind_is_there() -> None:
    made = maker()
    kinds = Counter(body.kind for body in made.bodies(500))
    assert set(kinds) == set(made.kinds)


def test_files_are_damaged_where_a_request_has_them() -> None:
    assert "damaged files" not in maker().kinds
    file = base64.b64encode(bytes(range(256))).decode()
    shape = Shape("/pooling", schema_of(Envelope[Request]), [{"data": {"text": file}}, {"data": {"text": "a b"}}])
    made = [body for body in Maker([shape], 1, BODY_BYTES).bodies(400) if body.kind == "damaged files"]
    found = [base64.b64decode(json.loads(body.content)["data"]["text"], validate=True) for body in made]
    assert len(set(found)) > len(found) * 0.9 > 50


def test_every_route_gets_bodies_of_its_own_shape() -> None:
    flat = schema_of(Request)
    shapes = [*maker()._shapes, Shape("/flat", flat, [{"text": "a"}]), Shape("/flatter", flat, [{"text": "b"}])]
    made = list(Maker(shapes, 1, BODY_BYTES).bodies(2_000))
    assert Counter(body.path for body in made).keys() == {"/pooling", "/flat", "/flatter"}
    valid = {(body.path, body.content) for body in made if body.kind == "valid"}
    assert ("/flat", b'{"model": "bench", "text": "a"}') in valid
    assert not any(b'"data"' in content for path, content in valid if path != "/pooling")


# what only some artifacts answer, and addresses of files, with what is found of each in other bodies
VECTORS = {"digest": "sha256:1", "vectors": {"a": base64.b64encode(bytes(range(1, 129))).decode(), "b": "AACAPw=="}}
SEEDS: list[tuple[str, list[Any], set[str]]] = [
    (
        "deberta_gliner_linker",
        [*fuzz.of_label_set("people", ["Q1", "Q2", "Q3"]), *fuzz.of_label_vectors(VECTORS)],
        {"label_set", "candidates_per_text", "label_vectors", "encode"},
    ),
    ("colqwen3", [*fuzz.VISUAL, *fuzz.ADDRESSED], {"pdf", "pages", "images", "inputs", "documents"}),
]


@pytest.mark.parametrize(("name", "seeds", "fields"), SEEDS, ids=[name for name, _, _ in SEEDS])
def test_requests_that_only_an_artifact_answers_are_seeds(name: str, seeds: list[Any], fields: set[str]) -> None:
    plugin = catalog.get(name)
    kind = resolve(plugin.processor).schemas["pooling"].request
    reference = Reference(artifact="", digest="", plugin=name, cases=(), expected={})
    given = seeds if name == "deberta_gliner_linker" else []
    made = list(fuzz.maker(reference, resolve(plugin.parity), 1, BODY_BYTES, given).bodies(6_000))
    valid = [json.loads(body.content) for body in made if body.kind == "valid" and body.path == "/pooling"]
    assert all(any(body["data"] == seed for body in valid) for seed in seeds)
    for body in valid:
        bodies.decode(json.dumps(body).encode(), kind)
    # one place of a seed is another one, in each of its fields, while the others are as they were
    changed = [json.loads(body.content) for body in made if body.kind == "border" and body.path == "/pooling"]
    data = [body["data"] for body in changed if isinstance(body.get("data"), dict)]
    for field in fields:
        good = [seed[field] for seed in seeds if field in seed]
        assert any(field in each and each[field] not in good for each in data), field
        assert any(each.get(field) in good for each in data), field
    assert any(body.kind == "damaged files" for body in made)


def test_documents_that_are_pdfs_are_changed_on_every_route_that_takes_them() -> None:
    plugin = catalog.get("colqwen3")
    reference = Reference(artifact="", digest="", plugin=plugin.name, cases=(), expected={})
    made = list(fuzz.maker(reference, resolve(plugin.parity), 1, BODY_BYTES).bodies(4_000))
    for path, seeds in (
        ("/pooling", [body for body in fuzz.VISUAL if "documents" in body]),
        ("/v2/rerank", fuzz.VISUAL_FURTHER["rerank"]),
    ):
        known = {json.dumps(document) for seed in seeds for document in seed["documents"]}
        found: dict[str, set[str]] = {"damaged files": set(), "border": set()}
        for body in made:
            if body.path == path and body.kind in found:
                for document in documents_of(json.loads(body.content)):
                    if isinstance(document, dict) and "pdf" in document and json.dumps(document) not in known:
                        found[body.kind].add(json.dumps(document))
        assert all(len(each) > 5 for each in found.values()), (path, found)


def documents_of(body: Any) -> list[Any]:
    data = body.get("data", body) if isinstance(body, dict) else body
    found = data.get("documents") if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


def test_addresses_of_files_are_changed_into_those_of_other_hosts_and_kinds() -> None:
    assert "other addresses" not in maker().kinds
    plugin = catalog.get("colqwen3")
    reference = Reference(artifact="", digest="", plugin=plugin.name, cases=(), expected={})
    made = fuzz.maker(reference, resolve(plugin.parity), 1, BODY_BYTES).bodies(1_500)
    rules = Rules(limits=limits.typed(VisualLimits, limits.defaults(plugin)), captions=False, hosts=[fuzz.MEDIA_HOST])
    kind = Envelope[VisualRequest]
    refused: set[str] = set()
    for body in made:
        if body.path == "/pooling" and body.kind == "other addresses":
            try:
                request.check(bodies.decode(body.content, kind).data, rules)
            except InvalidRequest as error:
                refused.add(error.message)
    for says in (
        "the host 127.0.0.1 is not allowed",
        "only https",
        "a user or a password",
        "not an address",
        "an address is not fetched",
    ):
        assert any(says in message for message in refused), (says, refused)


def accepted(content: bytes) -> bool:
    try:
        bodies.decode(content, Envelope[Request])
    except InvalidRequest:
        return False
    return True


def test_both_sides_of_the_schema_are_reached() -> None:
    verdicts = {kind: {True: 0, False: 0} for kind in maker().kinds}
    for body in maker().bodies(2_000):
        verdicts[body.kind][accepted(body.content)] += 1
    assert verdicts["valid"][False] == 0
    assert verdicts["deep"][True] == 0
    for kind in ("border", "combined", "fields", "damaged"):
        assert verdicts[kind][True], kind
        assert verdicts[kind][False], kind


def test_objects_of_any_names_and_tuples_are_filled() -> None:
    made = [body.content for body in maker().bodies(3_000) if body.kind == "combined" and accepted(body.content)]
    requests = [bodies.decode(content, Envelope[Request]).data for content in made]
    assert any(request.named for request in requests)
    assert any(request.pairs for request in requests)


def test_each_field_is_found_wrong_somewhere() -> None:
    named: Counter[str] = Counter()
    for body in maker().bodies(3_000):
        try:
            bodies.decode(body.content, Envelope[Request])
        except InvalidRequest as error:
            named[error.param] += 1
    assert {
        "data",
        "data.text",
        "data.share",
        "data.inner",
        "data.inner[0].low",
        "data.pairs[0][0]",
        "model",
        "body",
    } <= set(named)


def test_some_are_larger_than_a_server_takes() -> None:
    sizes = [len(body.content) for body in maker().bodies(3_000) if body.kind == "large"]
    assert min(sizes) < BODY_BYTES < max(sizes)


@pytest.mark.parametrize("kind", ["valid", "border", "combined", "random data", "random JSON", "other text"])
def test_what_is_called_json_is_written_as_some_client_would(kind: str) -> None:
    for body in maker().bodies(1_000):
        if body.kind == kind:
            json.loads(body.content)
