"""The documentation's table of plugins."""

from encoder_platform import plugin_table
from encoder_plugins import catalog


def test_the_committed_page_matches_the_catalog() -> None:
    assert plugin_table.main(["--check"]) == 0


def test_a_row_has_as_many_cells_as_the_head() -> None:
    rows = [line for line in plugin_table.table(catalog.plugins().values()).splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(catalog.plugins())
    assert len({row.count("|") for row in rows}) == 1
