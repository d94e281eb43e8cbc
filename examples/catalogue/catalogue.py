"""A made-up catalogue of 10 000 entities, and 100 sentences that mention some of them. Standard library only.

Every name is shared by 20 entities of different kinds, so that only the sentence tells which of them is meant.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

BEGINNINGS = (
    *("Al", "Bar", "Bel", "Cor", "Dal", "Dor", "El", "Far", "Gal", "Har", "Kel", "Lam", "Mar"),
    *("Nor", "Or", "Pel", "Ran", "Sel", "Tal", "Tor", "Ul", "Ver", "Wel", "Yar", "Zan"),
)
ENDINGS = (
    *("bach", "berg", "bury", "den", "dor", "fax", "field", "ford", "gate", "ham"),
    *("ia", "ley", "mark", "mont", "ona", "port", "stad", "ton", "ville", "wick"),
)

# a kind of entity, and sentences in which a name is of that kind
KINDS: dict[str, tuple[str, ...]] = {
    "river in the north": (
        "After three days of rain {} rose above its banks.",
        "We paddled down {} to the sea.",
        "The mouth of {} is two miles wide.",
        "Salmon swim up {} in the autumn.",
        "The old bridge over {} was closed.",
    ),
    "mountain with a glacier": (
        "They reached the summit of {} before noon.",
        "Snow lies on {} all summer.",
        "The north face of {} was first climbed in 1931.",
        "A hut stands at the foot of {}.",
        "From the ridge of {} one can see the border.",
    ),
    "city with a harbour": (
        "The tram runs through the centre of {}.",
        "She was elected mayor of {} in May.",
        "Rents in {} have doubled within ten years.",
        "The night train to {} leaves at nine.",
        "Two districts of {} had no water.",
    ),
    "football club": (
        "{} won the cup after extra time.",
        "The striker leaves {} at the end of the season.",
        "Fans of {} filled the stadium.",
        "The coach of {} was sent off.",
        "{} drew two all at home.",
    ),
    "maker of steel": (
        "{} closed its last furnace in spring.",
        "Workers at {} asked for higher wages.",
        "Shares of {} fell when the price of ore rose.",
        "The rolling mill of {} employs 900 people.",
        "{} will make steel with hydrogen.",
    ),
    "bank": (
        "{} raised the rate of its savings accounts.",
        "The loan was granted by {}.",
        "Regulators fined {} for its risk models.",
        "Customers of {} could not withdraw money.",
        "{} wrote off bad debts of two billion.",
    ),
    "painter": (
        "The gallery shows forty works by {}.",
        "{} painted the harbour again and again.",
        "A portrait by {} was sold at auction.",
        "The brushwork of {} became freer with age.",
        "In 1889 {} shared a studio in the south.",
    ),
    "novelist": (
        "{} wrote her third novel in exile.",
        "The heroine of {}'s last book is a doctor.",
        "Critics praised the dialogue of {}.",
        "{} was translated into thirty languages.",
        "A chapter by {} was censored.",
    ),
    "physicist": (
        "{} measured the mass of the particle.",
        "The equation is named after {}.",
        "{} shared the prize for work on superconductors.",
        "In her lecture {} explained entropy.",
        "The detector was designed by {}.",
    ),
    "programming language": (
        "The compiler of {} checks the types.",
        "We rewrote the parser in {}.",
        "{} has no garbage collector.",
        "A library for {} was published under a free licence.",
        "The syntax of {} needs no semicolons.",
    ),
    "database": (
        "A query on {} took two seconds.",
        "We replicate {} to a second site.",
        "The index of {} did not fit into memory.",
        "{} writes its log before it answers.",
        "Backups of {} run at night.",
    ),
    "airline": (
        "{} cancelled forty flights because of fog.",
        "The pilots of {} went on strike.",
        "I flew to the islands with {}.",
        "{} ordered twelve new aircraft.",
        "Our luggage was lost by {}.",
    ),
    "car": (
        "The brakes of the {} were worn.",
        "He drove a red {} to the wedding.",
        "The {} needs five litres for a hundred kilometres.",
        "A used {} costs half as much.",
        "The engine of the {} is in the back.",
    ),
    "cheese": (
        "She grated {} over the pasta.",
        "{} ripens for six months in a cellar.",
        "A slice of {} on dark bread is enough.",
        "The rind of {} can be eaten.",
        "{} is made from the milk of sheep.",
    ),
    "wine": (
        "We drank a bottle of {} with the fish.",
        "The grapes for {} are picked by hand.",
        "{} is dry and smells of pears.",
        "A glass of {} costs nine francs.",
        "The best year of {} was 2015.",
    ),
    "ship": (
        "{} ran aground on a reef.",
        "The crew of {} was saved by a helicopter.",
        "{} carries six thousand containers.",
        "The captain steered {} into the fjord.",
        "{} was scrapped after forty years at sea.",
    ),
    "disease of plants": (
        "{} destroyed a third of the potatoes.",
        "The leaves turn yellow where {} breaks out.",
        "Farmers spray copper against {}.",
        "Spores of {} travel with the wind.",
        "A gene protects wheat from {}.",
    ),
    "medicine": (
        "The doctor prescribed {} twice a day.",
        "{} lowers the pressure of the blood.",
        "A side effect of {} is dizziness.",
        "The trial compared {} with a placebo.",
        "Take {} after a meal.",
    ),
    "opera": (
        "The second act of {} ends with a storm.",
        "She sang the leading part in {}.",
        "{} was first performed in Vienna.",
        "The overture of {} is often played alone.",
        "The tenor forgot his lines in {}.",
    ),
    "asteroid": (
        "{} passed the Earth at the distance of the Moon.",
        "The orbit of {} takes four years.",
        "A probe will bring dust of {} back.",
        "Radar images show that {} has two lobes.",
        "{} was discovered on a photographic plate.",
    ),
}


def entities() -> Iterator[dict[str, str]]:
    """Yield the entities, each with an id, and a label that begins with its name."""
    names = [beginning + ending for beginning in BEGINNINGS for ending in ENDINGS]
    for number, (kind, name) in enumerate((kind, name) for kind in KINDS for name in names):
        yield {"id": f"E{number:05}", "label": f"{name}: {kind}"}


def sentences() -> Iterator[str]:
    """Yield the sentences, each with another name."""
    templates = [template for templates in KINDS.values() for template in templates]
    for number, template in enumerate(templates):
        yield template.format(BEGINNINGS[number // 4] + ENDINGS[number % len(ENDINGS)])


def main() -> None:
    """Write catalogue.jsonl and sentences.txt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{json.dumps(entity)}\n" for entity in entities())
    (folder / "catalogue.jsonl").write_text(lines, encoding="utf-8")
    (folder / "sentences.txt").write_text("".join(f"{sentence}\n" for sentence in sentences()), encoding="utf-8")


if __name__ == "__main__":
    main()
