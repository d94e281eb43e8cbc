"""What the tables of linking and of visual retrieval compare, and what is sent for them."""

from __future__ import annotations

import io
import json

from PIL import Image

from encoder_bench import linking, pages, visual


def test_linking_is_compared_with_the_library_and_with_one_set_of_labels() -> None:
    rows = [
        linking.Row(side="gliner, batches of 8", words=64, labels=20, sets="same", rate=50.0, entities=2.0),
        linking.Row(side="ours, HTTP", words=64, labels=20, sets="same", rate=500.0, entities=2.0),
        linking.Row(side="ours, HTTP", words=64, labels=20, sets="cold", rate=250.0, entities=2.0, notes="note"),
        linking.Row(side="ours, HTTP", words=256, labels=20, sets="same", rate=100.0, entities=2.0),
    ]
    shown = linking.table(rows)
    assert "| 20 | 64 | ours, HTTP | cold | 250 | 5.00 | 0.50 | 2 | note |" in shown
    assert "| 20 | 256 | ours, HTTP | same | 100 |  | 1.00 | 2 |  |" in shown


def test_cold_labels_come_once_and_rotating_ones_in_turn() -> None:
    cold, rotating, same = (linking.label_sets(100, sets) for sets in ("cold", "rotating", "same"))
    labels = [label for each in cold for label in each]
    assert len(labels) == len(set(labels)) == linking.COLD
    assert not set(labels) & {label for each in (*rotating, *same) for label in each}
    bodies = [json.loads(body) for body in linking._bodies(["a", "b", "c"], rotating, 1, {"threshold": 0.5})]
    assert [body["data"]["labels"] for body in bodies] == rotating
    assert [body["data"]["texts"] for body in bodies][:4] == [["a"], ["b"], ["c"], ["a"]]


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
