"""Link the names in sentences to entities of a catalogue: a linker proposes, a reranker decides. Needs Python 3.11 and nothing else.

Prints one line of JSON for each name that was found, with the entity that it is linked to.
"""

from __future__ import annotations

import argparse
import json
import re
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# sentences of a request: the server's default limits are 256 texts, and 1 000 different labels
BATCH = 32
# entities of a name that the reranker gets
PROPOSED = 5

Entity = dict[str, Any]


def read(path: Path) -> dict[str, list[Entity]]:
    """Return the entities of a catalogue by their names, which labels begin with."""
    names: dict[str, list[Entity]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        entity = json.loads(line)
        names[entity["label"].partition(":")[0]].append(entity)
    return names


def mentions(sentence: str, names: dict[str, list[Entity]]) -> list[dict[str, int]]:
    """Return where names of the catalogue are in a sentence."""
    return [
        {"start": match.start(), "end": match.end()} for match in re.finditer(r"\w+", sentence) if match[0] in names
    ]


def scored(url: str, data: dict[str, Any]) -> list[list[Entity]]:
    """Return what a server finds in each text: all pairs of a span and a candidate, with their scores."""
    everything = {"threshold": 0.0, "multi_label": True, **data}
    request = urllib.request.Request(
        f"{url}/pooling", json.dumps({"data": everything}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return [result["entities"] for result in json.load(response)["data"]["results"]]
    except urllib.error.HTTPError as error:
        raise SystemExit(f"the server answered {error.code}: {error.read().decode()}") from None
    except (OSError, ValueError) as error:
        raise SystemExit(f"no answer from {url}: {error}") from None


def best(found: Sequence[Entity], start: int, name: str, count: int) -> list[Entity]:
    """Return the entities with this name that fit best to the words at ``start``, the best first."""
    own = [one for one in found if one["start"] == start and one["label"].partition(":")[0] == name]
    return sorted(own, key=lambda one: -one["score"])[:count]


def link(
    linker: str, label_set: str, reranker: str, sentences: Sequence[str], names: dict[str, list[Entity]]
) -> list[Entity]:
    """Return a record for each name in the sentences."""
    spans = [mentions(sentence, names) for sentence in sentences]
    words = [
        [sentence[span["start"] : span["end"]] for span in own] for sentence, own in zip(sentences, spans, strict=True)
    ]
    # the linker has the catalogue: ids are enough
    ids = [[entity["id"] for word in dict.fromkeys(own) for entity in names[word]] for own in words]
    common = {"texts": list(sentences), "input_spans": spans}
    found = scored(linker, {**common, "label_set": label_set, "candidates_per_text": ids})
    proposed = [
        [best(entities, span["start"], word, PROPOSED) for span, word in zip(own, own_words, strict=True)]
        for entities, own, own_words in zip(found, spans, words, strict=True)
    ]
    # a label once in each text, however often its name is there
    candidates = [
        list({one["id"]: {"id": one["id"], "label": one["label"]} for some in own for one in some}.values())
        for own in proposed
    ]
    decided = scored(reranker, {**common, "candidates_per_text": candidates})
    return [
        {"sentence": sentence, "name": word, **span, **{field: chosen[field] for field in ("id", "label", "score")}}
        for sentence, own, own_words, entities in zip(sentences, spans, words, decided, strict=True)
        for span, word in zip(own, own_words, strict=True)
        for chosen in best(entities, span["start"], word, 1)
    ]


def main() -> None:
    """Link the sentences of a file in batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("linker", help="address of a server of deberta_gliner_linker, such as http://localhost:8000")
    parser.add_argument("reranker", help="address of a server of modernbert_gliner_rerank")
    parser.add_argument("catalogue", type=Path, help="the label set as JSON lines")
    parser.add_argument("sentences", type=Path, help="a text file, a sentence in each line")
    parser.add_argument("--label-set", default="catalogue", help="the name that the linker has it under")
    given = parser.parse_args()
    names = read(given.catalogue)
    sentences = [line for line in given.sentences.read_text(encoding="utf-8").splitlines() if mentions(line, names)]
    for first in range(0, len(sentences), BATCH):
        batch = sentences[first : first + BATCH]
        for record in link(given.linker, given.label_set, given.reranker, batch, names):
            print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    main()
