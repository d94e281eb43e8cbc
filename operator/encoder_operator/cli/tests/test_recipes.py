"""docs/recipes.md: what it shows is what the operator takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from encoder_operator.cli import render
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS, with_fields

PAGE = Path(__file__).parents[4] / "docs" / "recipes.md"
RECIPES: list[Json] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: "-".join(recipe))
def test_a_recipe_is_accepted_and_changes_what_is_applied(recipe: Json) -> None:
    live = with_fields({f"spec.{part}": value for part, value in recipe.items()})
    found = render.render_children(live, SETTINGS)
    assert {"Job", "Deployment", "Service"} <= {child["kind"] for child in found}
    # paused shows in no manifest: nothing is written
    assert found != render.render_children(with_fields({}), SETTINGS) or recipe == {"paused": True}


def test_the_page_has_recipes() -> None:
    assert len(RECIPES) >= 15
