"""The documentation's table of plugins."""

from encoder_platform import plugin_table
from encoder_platform.pages import ROOT
from encoder_plugins import catalog


def test_the_committed_page_matches_the_catalog() -> None:
    assert plugin_table.main(["--check"]) == 0


def test_a_row_has_as_many_cells_as_the_head() -> None:
    rows = [line for line in plugin_table.table(catalog.plugins().values()).splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(catalog.plugins())
    assert len({row.count("|") for row in rows}) == 1


def test_the_page_of_supported_models_names_plugins_that_exist() -> None:
    rows = [
        line.split("|") for line in (ROOT / "docs" / "supported-models.md").read_text().splitlines() if line[:1] == "|"
    ]
    rows = [row for row in rows if not set(row[2].strip()) <= {"-"} and row[2].strip() != "plugin"]
    named = {row[2].strip().strip("`") for row in rows}
    assert {"refused", "sentence_transformer"} < named <= {*catalog.plugins(), "refused"}
    assert {row[3].split()[0] for row in rows} == {"run", "shape", "format"}
