"""From bytes to a request, and the message for bytes that are not one."""

import math
import subprocess
import sys
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest
from msgspec import Meta

from encoder_plugins.errors import InvalidRequest, UnknownAdapter, UnknownModel
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.body import Data, Envelope


class Inner(Data, frozen=True):
    low: Annotated[int, Meta(ge=0)]


class Grade(Data, frozen=True):
    grade: Literal["high", "low"]
    parts: dict[str, int] | None = None


class Words(Data, frozen=True):
    words: list[str]
    count: int | None = None
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    kind: Literal["plain", "fancy"] | None = None
    inner: list[list[Inner]] | None = None
    named: list[Inner] | dict[str, list[Grade] | Inner] | None = None
    grades: list[Grade] | Grade | None = None


class Anything(Data, frozen=True):
    value: Any


BODY = Envelope[Words]


def refusal(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        bodies.decode(body, BODY)
    assert str(caught.value) == f"{caught.value.param}: {caught.value.message}"
    return caught.value


def test_a_good_body_is_parsed() -> None:
    envelope = bodies.decode(b'{"model": "m", "lora": "l", "data": {"words": ["a", "\\u00e9\\u0000"]}}', BODY)
    assert (envelope.model, envelope.lora, envelope.data) == ("m", "l", Words(words=["a", "é\0"]))


@pytest.mark.parametrize("number", ["144.0", "144", "1.44e2", "14400e-2"])
def test_a_whole_number_is_an_integer_however_it_is_written(number: str) -> None:
    body = f'{{"priority": 0.0, "data": {{"words": [], "count": {number}, "share": 1.0, "inner": [[{{"low": {number}}}]]}}}}'
    found = bodies.decode(body.encode(), BODY)
    assert found == Envelope(data=Words(words=[], count=144, share=1.0, inner=[[Inner(low=144)]]))
    assert (type(found.data.count), type(found.data.share), type(found.priority)) == (int, float, int)


@pytest.mark.parametrize(("number", "taken"), [("9007199254740992.0", True), ("9007199254740994.0", False)])
def test_a_whole_number_with_a_fraction_is_an_integer_as_far_as_floats_are_exact(number: str, taken: bool) -> None:
    body = f'{{"data": {{"words": [], "count": {number}}}}}'.encode()
    assert bodies.decode(body, BODY).data.count == 2**53 if taken else refusal(body).param == "data.count"


@pytest.mark.parametrize(
    "more",
    ["", '"model": null,', '"priority": 0, "task": "plugin",', '"task": null, "request_id": "x", "user": "tenant",'],
)
def test_what_other_clients_send_beside_the_data_is_accepted(more: str) -> None:
    body = f'{{{more} "data": {{"words": []}}}}'.encode()
    assert bodies.decode(body, BODY).data == Words(words=[])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"null", "body"),
        (b'{"model": "m", "data": {"words": ["\xff"]}}', "body"),
        (b'{"model": "m", "data": {"words": ["a", "\\ud800"]}}', "data.words[1]"),
        (b'{"model": "m", "data": {"words": ["\\udc00\\ud800"]}}', "data.words[0]"),
        (b'{"data": {"named": {"\\ud800": "\\ud800"}}}', "data.named.?"),
        (b'{"data": {"words": ["\\ud800"], "inner": ' + b"[" * 900 + b"]" * 900 + b"}}", "data.words[0]"),
        (b'\xef\xbb\xbf{"data": {"words": []}}', "body"),
        (b'{"model": "m", "data": {"words": []}} x', "body"),
        (b'{"model": "m", "data": {"words": [NaN]}}', "data.words[0]"),
        (b'{"data": {"share": -Infinity, "words": []}}', "data.share"),
        (b'{"data": {"words": ["' + b"x" * 300_000 + b'\\ud800"]}}', "body"),
        (b'{"model": "m", "data": ' + b"[" * 100_000, "data"),
        (b'{"data": {"words": [], "inner": ' + b"[" * 100_000, "data.inner[0][0]"),
        (b'{"model": 3, "data": {"words": []}}', "model"),
        (b'{"model": "m"}', "data"),
        (b'{"model": "m", "data": null}', "data"),
        (b'{"priority": 1, "data": {"words": []}}', "priority"),
        (b'{"task": "embed", "data": {"words": []}}', "task"),
        (b'{"model": "m", "data": {"words": []}, "input": "x"}', "input"),
        (b'{"model": "m", "data": {}}', "data.words"),
        (b'{"model": "m", "data": {"words": "a"}}', "data.words"),
        (b'{"model": "m", "data": {"words": ["a", 3]}}', "data.words[1]"),
        (b'{"model": "m", "data": {"words": [["a"]]}}', "data.words[0]"),
        (b'{"model": "m", "data": {"words": [], "count": true}}', "data.count"),
        (b'{"model": "m", "data": {"words": [], "count": 1.5}}', "data.count"),
        (b'{"model": "m", "data": {"words": [], "count": 1e40}}', "data.count"),
        (b'{"data": {"words": [], "count": 1.0, "inner": [[{"low": -2.0}]]}}', "data.inner[0][0].low"),
        (b'{"data": {"count": 1.0, "words": [], "named": {"a": {"low": 1.0}, "b": {"low": -1}}}}', "data.named.b.low"),
        (b'{"data": {"words": [], "count": 1.0, "share": NaN}}', "data.share"),
        (b'{"data": {"words": [], "count": 1.0, ', "body"),
        (b'{"data": {"words": [], "count": 1.0, "inner": ' + b"[" * 100_000, "body"),
        (b'{"model": "m", "data": {"words": [], "count": ' + b"9" * 5_000 + b"}}", "data.count"),
        (b'{"model": "m", "data": {"words": [], "share": 1e999}}', "data.share"),
        (b'{"model": "m", "data": {"words": [], "share": -0.1}}', "data.share"),
        (b'{"model": "m", "data": {"words": [], "inner": [[{"low": 1}], [{"low": -1}]]}}', "data.inner[1][0].low"),
        (b'{"model": "m", "data": {"words": [], "other": 1}}', "data.other"),
        (b'{"data": {"words": [], "named": {"a": {"low": 1}, "b.[c]": {"low": -1}, "d": 3}}}', "data.named.b.[c].low"),
        (b'{"data": {"words": [], "named": {"a": [], "b": [{"grade": "low", "x": 1}]}}}', "data.named.b[0].x"),
        (
            b'{"data": {"words": [], "named": {"a": [{"grade": "low", "parts": {"p": 1, "q": ""}}], "z": 1}}}',
            "data.named.a[0].parts.q",
        ),
        (b'{"data": {"words": [], "named": {"a": 18446744073709551616}}}', "data.named.a"),
        (b'{"data": {"words": [], "named": {"a": {"low": -1}}} ', "data.named[...].low"),
        (b'{"data": {"words": [], "named": {"' + b"x" * 5_000 + b'": 1}}}', f"data.named.{'x' * 100}"),
    ],
)
def test_a_bad_body_is_refused_by_the_name_of_its_field(body: bytes, param: str) -> None:
    assert refusal(body).param == param


def test_a_choice_is_refused_with_the_choices_and_without_the_value() -> None:
    found = refusal(b'{"data": {"words": [], "kind": "secret"}}')
    assert (found.param, found.message) == ("data.kind", "it must be 'fancy' or 'plain'")


@pytest.mark.parametrize("rest", [b'"words": ' + b"[" * 100_000 + b"]" * 100_000, b'"words": ["\xff"]', b'"words": ['])
def test_a_key_is_not_searched_where_the_rest_of_the_body_cannot_be_read(rest: bytes) -> None:
    assert refusal(b'{"data": {"named": {"a": {"low": -1}}, ' + rest + b"}}").param == "data.named[...].low"


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"words": [], "kind": "a - at `$.other"}, "data.kind"),
        ({"words": [], "kind": "a - at `$[...].other"}, "data.kind"),
        ({"words": [], "kind": "a - at `$.other`"}, "data.kind"),
        ({"words": [], "a` - at `$[...].b.c": 1}, "data.a` - at `$[...].b.c"),
    ],
)
def test_a_value_or_a_field_that_looks_like_a_path_is_refused_by_its_own(data: Any, param: str) -> None:
    assert refusal(msgspec.json.encode({"data": data})).param == param


def test_a_field_beside_data_that_looks_like_a_path_is_refused() -> None:
    assert "no such field" in refusal(b'{"data": {"words": []}, "a` - at `$[...].b.c": 1}').message


def test_a_key_is_not_searched_in_a_large_body() -> None:
    found = refusal(b'{"data": {"words": ["' + b"x" * 300_000 + b'"], "named": {"a": 1}}}')
    assert found.param == "data.named[...]"


@pytest.mark.parametrize(("more", "param"), [(0, "data.named.a"), (1, "data.named[...]")])
def test_a_key_is_searched_in_a_body_of_256_kib(more: int, param: str) -> None:
    rest = b'"], "named": {"a": 1}}}'
    begun = b'{"data": {"words": ["'
    assert refusal(begun + b"x" * ((1 << 18) - len(begun) - len(rest) + more) + rest).param == param


def test_a_key_that_is_there_twice_is_not_named() -> None:
    # the second one is good, so that the document as a whole is
    found = refusal(b'{"data": {"words": [], "named": {"a": {"low": -1}, "b": {"low": 1}, "a": {"low": 2}}}}')
    assert found.param == "data.named[...].low"


def test_a_choice_below_a_key_is_refused_with_the_choices() -> None:
    found = refusal(b'{"data": {"words": [], "named": {"a": [], "b": [{"grade": "secret"}]}}}')
    assert (found.param, found.message) == ("data.named.b[0].grade", "it must be 'high' or 'low'")


@pytest.mark.parametrize(
    ("grades", "path"),
    [('{"grade": "secret"}', "data.grades.grade"), ('[{"grade": "secret"}]', "data.grades[0].grade")],
)
def test_a_choice_in_one_form_of_several_is_refused_with_the_choices(grades: str, path: str) -> None:
    found = refusal(f'{{"data": {{"words": [], "grades": {grades}}}}}'.encode())
    assert (found.param, found.message) == (path, "it must be 'high' or 'low'")


def test_a_request_with_its_defaults_written_out_is_the_same_request() -> None:
    found = bodies.decode(b'{"data": {"words": []}}', BODY)
    assert bodies.decode(msgspec.json.encode(found), BODY) == found


@pytest.mark.parametrize("words", ['"secret"', '["a", {"secret": 1}]', "[secret]"])
def test_a_refusal_never_repeats_what_was_sent(words: str) -> None:
    assert "secret" not in str(refusal(f'{{"data": {{"words": {words}}}}}'.encode()))


def test_what_is_nested_too_deeply_for_any_value_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the JSON is nested too deeply") as caught:
        bodies.decode(b'{"data": {"value": ' + b"[" * 100_000, Envelope[Anything])
    assert caught.value.param == "body"


def test_a_field_name_is_only_repeated_in_part() -> None:
    found = refusal(b'{"data": {"words": [], "' + b"x" * 10_000 + b'": 1}}')
    assert found.param == f"data.{'x' * 100}"


# types that nothing has decoded yet, each by four threads at once; a crash ends the process
FIRST_REQUESTS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from encoder_plugins.inputs.body import Data, Envelope, decode

sys.setswitchinterval(1e-6)
barrier = Barrier(4)


def parse(kind):
    barrier.wait()
    return decode(b'{"data": {"texts": ["a", "b"], "least": 3}}', kind).data.texts


with ThreadPoolExecutor(4) as threads:
    for _ in range(200):

        class Texts(Data, frozen=True):
            texts: list[str] | None = None
            by_name: dict[str, list[int]] | None = None
            least: int = 0

        assert list(threads.map(parse, [Envelope[Texts]] * 4)) == [["a", "b"]] * 4
"""


def test_first_requests_may_be_parsed_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", FIRST_REQUESTS], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]


def circular() -> list[Any]:
    """Return a list that is in itself."""
    found: list[Any] = []
    found.append(found)
    return found


def test_requests_in_process_become_the_same_body() -> None:
    data = {"words": ("a", "b"), "share": np.float32(0.25), "count": np.int64(3)}
    envelope = bodies.decode(bodies.encode(data, lora="l"), BODY)
    assert envelope == Envelope(lora="l", data=Words(words=["a", "b"], share=0.25, count=3))


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"words": ["a", "b\ud800"]}, "data.words[1]"),
        ({"words": ["a"], "inner": [[{"low": "\udfff"}]]}, "data.inner[0][0].low"),
        ({"words": [object()]}, "data"),
        ({"words": ["a", b"b"]}, "data.words[1]"),
        ({"words": [], "named": {"x": [{"grade": bytearray(b"high")}]}}, "data.named.x[0].grade"),
        ({"words": [], "count": 10**5000}, "data"),
        ({"words": circular()}, "data"),
    ],
)
def test_what_json_has_not_is_refused_in_process(data: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bodies.encode(data)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"words": [], "share": math.nan}, "data.share"),
        ({"words": [], "inner": [{"low": (0.5, -math.inf)}]}, "data.inner[0].low[1]"),
        ({"words": [], "share": np.float32("nan")}, "data.share"),
        ({"words": [], "rows": np.array([[1.0, math.inf]])}, "data.rows[0][1]"),
    ],
)
def test_a_number_that_is_not_finite_is_refused_in_process_too(data: Any, param: str) -> None:
    # and not taken for null, which means something to some fields
    with pytest.raises(InvalidRequest, match="is not finite") as caught:
        bodies.encode(data)
    assert caught.value.param == param


def test_bytes_are_written_in_base64_where_a_field_takes_that() -> None:
    data = {"documents": ["a", {"image": b"x", "text": "b"}, {"pdf": b"y"}], "images": [b"z"]}
    written = {"documents": ["a", {"image": "eA==", "text": "b"}, {"pdf": "eQ=="}], "images": ["eg=="]}
    assert msgspec.json.decode(bodies.encode(data)) == {"data": written}


def test_null_and_its_letters_are_taken_in_process() -> None:
    data = {"words": ["null"], "share": None}
    assert msgspec.json.decode(bodies.encode(data)) == {"data": data}


def test_a_request_names_its_adapter_by_either_field() -> None:
    names, adapters = ("m", "n"), frozenset({"l", "k"})
    for model, lora, found in [
        (None, None, None),
        ("n", None, None),
        (None, "l", "l"),
        ("m", "k", "k"),
        ("l", None, "l"),
        ("l", "l", "l"),
    ]:
        assert bodies.adapter_of(model, lora, names, adapters) == found
    # a name of both is the model's
    assert bodies.adapter_of("m", None, names, frozenset({"m"})) is None
    none, long = frozenset[str](), "x" * 200
    for model, lora, of, error, says in [
        ("o", None, adapters, UnknownModel, "no model 'o' is served here; this is 'm'; adapters: k, l"),
        ("o", None, none, UnknownModel, "no model 'o' is served here; this is 'm'"),
        ("m", "o", adapters, UnknownAdapter, "no adapter 'o' is served here; there is: k, l"),
        ("m", "o", none, UnknownAdapter, "no adapter 'o' is served here; there is: none"),
        ("l", "k", adapters, InvalidRequest, "`model` names another adapter, 'l'"),
        # of a long name the beginning
        (long + "y", None, none, UnknownModel, f"no model '{long}' is served here; this is 'm'"),
        (None, long + "y", none, UnknownAdapter, f"no adapter '{long}' is served here; there is: none"),
    ]:
        with pytest.raises(error) as caught:
            bodies.adapter_of(model, lora, names, of)
        param = "model" if error is UnknownModel else "lora"
        assert (type(caught.value), caught.value.param, caught.value.message) == (error, param, says)
    assert (UnknownModel.status, UnknownAdapter.status, InvalidRequest.status) == (404, 404, 400)


def test_every_request_type_is_strict_and_cannot_be_changed() -> None:
    for kind in (Data, Envelope, Words, Inner):
        options = kind.__struct_config__
        assert (options.forbid_unknown_fields, options.frozen) == (True, True)
    assert msgspec.json.schema(BODY)
