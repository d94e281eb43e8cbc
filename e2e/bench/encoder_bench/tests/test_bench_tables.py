"""What the tables of linking and of visual retrieval compare, and what is sent for them."""

from __future__ import annotations

import io
import json

from PIL import Image

from encoder_bench import linking, linking_workload, pages, reranking, scale, visual
from encoder_bench.reranking_peers import merged


def test_linking_is_compared_with_the_library_and_with_one_set_of_labels() -> None:
    rows = [
        linking_workload.Row(side="gliner, batches of 8", words=64, labels=20, sets="same", rate=50.0, entities=2.0),
        linking_workload.Row(side="ours, HTTP", words=64, labels=20, sets="same", rate=500.0, entities=2.0),
        linking_workload.Row(
            side="ours, HTTP", words=64, labels=20, sets="cold", rate=250.0, entities=2.0, notes="note"
        ),
        linking_workload.Row(side="ours, HTTP", words=256, labels=20, sets="same", rate=100.0, entities=2.0),
    ]
    shown = linking.table(rows)
    assert "| 20 | 64 | ours, HTTP | cold | 250 | 5.00 | 0.50 | 2 | note |" in shown
    assert "| 20 | 256 | ours, HTTP | same | 100 |  | 1.00 | 2 |  |" in shown


def test_cold_labels_come_once_and_rotating_ones_in_turn() -> None:
    cold, rotating, same = (linking_workload.label_sets(100, sets) for sets in ("cold", "rotating", "same"))
    labels = [label for each in cold for label in each]
    assert len(labels) == len(set(labels)) == linking_workload.COLD
    assert not set(labels) & {label for each in (*rotating, *same) for label in each}
    bodies = [
        json.loads(body) for body in linking._bodies(["a", "b", "c"], linking_workload.fields(100, "rotating"), 1, {})
    ]
    assert [body["data"]["labels"] for body in bodies] == rotating
    assert [body["data"]["texts"] for body in bodies][:4] == [["a"], ["b"], ["c"], ["a"]]
    (named,) = (json.loads(body) for body in linking._bodies(["a"], linking_workload.fields(100, "named"), 1, {}))
    assert named["data"] == {"texts": ["a"], "label_set": "same-100"}


def test_pages_and_queries_are_compared_each_with_the_librarys_own() -> None:
    rows = [
        visual.Row(kind="pages", side=visual.LIBRARY, load="batches of 8", rate=20.0, rows=978),
        visual.Row(kind="queries", side=visual.LIBRARY, load="batches of 8", rate=400.0, rows=30),
        visual.Row(kind="pages", side="ours, HTTP", load="8 clients", rate=50.0, rows=978, notes="note"),
    ]
    assert "| pages | ours, HTTP | 8 clients | 50 | 2.5 | 978 | note |" in visual.table(rows)


def test_pages_are_files_of_their_own_of_one_size() -> None:
    first, again, second = pages.page(1), pages.page(1), pages.page(2)
    assert first == again != second
    assert Image.open(io.BytesIO(first)).size == (pages.WIDTH, pages.HEIGHT)


def test_a_reranker_gets_candidates_and_mentions_of_each_text() -> None:
    texts = ["zero one two three four five six seven eight nine ten eleven twelve thirteen", "one two"]
    labels = linking_workload.candidates(2, 60_000)
    assert labels[0][0] != labels[1][0]
    data = reranking.body(texts, [own[:2] for own in labels], 0.5, 20)
    spans = [
        [texts[number][span["start"] : span["end"]] for span in own] for number, own in enumerate(data["input_spans"])
    ]
    assert spans == [["three", "eleven twelve"], []]
    assert [[one["label"] for one in own] for own in data["candidates_per_text"]] == [own[:2] for own in labels]


def test_the_best_label_of_a_span_is_that_of_any_group() -> None:
    def entity(start: int, label: str, score: float) -> dict[str, object]:
        return {"text": "x", "start": start, "end": start + 1, "label": label, "score": score}

    found = merged([[entity(0, "a", 0.5), entity(2, "b", 0.9)], [entity(0, "c", 0.7), entity(2, "d", 0.9)]])
    assert [one["label"] for one in found] == ["c", "b"]


def test_several_gpus_are_compared_with_one_under_the_same_load() -> None:
    rows = [
        scale.Row("a server for each", 1, "64 x 1", 1000.0, 0.01),
        scale.Row("a server for each", 2, "64 x 1", 1900.0, 0.011),
        scale.Row("one port", 2, "64 x 1", 1500.0, 0.02),
        scale.Row("a server for each", 2, "16 x 32", 5000.0, 0.1),
    ]
    shown = scale.table(rows).splitlines()
    assert "| 2 | a server for each | 64 x 1 | 1900 | 1.90 | 11.0 ms |" in shown
    assert "| 2 | one port | 64 x 1 | 1500 | 1.50 | 20.0 ms |" in shown
    assert "| 2 | a server for each | 16 x 32 | 5000 |  | 100.0 ms |" in shown


def test_each_server_has_cores_of_its_own() -> None:
    assert scale.shares(range(9), 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert scale.shares([3], 1) == [[3]]
