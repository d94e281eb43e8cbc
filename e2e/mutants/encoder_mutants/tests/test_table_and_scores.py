"""The table names what exists, and the page shows what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_mutants import __main__, mutants, scores, table
from encoder_mutants.scores import Score
from encoder_mutants.table import Group

GROUP = Group(name="Serving", modules=("serving/tuning.py", "serving/command.py"), unit=("tests",))


def test_every_path_of_the_table_exists() -> None:
    groups, equivalents = table.read()
    for group in groups:
        if group.merged:
            assert [module for module in group.modules if not (table.ROOT / module).is_file()] == []
            assert table.files(group.unit + group.all)
            assert set(group.scenarios) <= set(group.modules)
            for tests in group.scenarios.values():
                names = [test.partition("::") for test in table.files(tests)]
                assert [name for path, _, name in names if f"def {name}" not in (table.ROOT / path).read_text()] == []
    for equivalent in equivalents:
        found = mutants.mutants((table.ROOT / equivalent.module).read_text())
        known = {mutant.text for mutant in found if mutant.operator == equivalent.operator}
        assert [line for line in equivalent.lines if line not in known] == []


def test_a_pattern_that_names_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such"):
        table.files(["no-such-*.py"], tmp_path)


def test_a_module_may_have_scenarios_of_its_own_of_which_single_tests_are_named(tmp_path: Path) -> None:
    group = Group(
        name="G", modules=("a.py", "b.py"), unit=("u",), all=("x.py",), scenarios={"b.py": ("t_*.py::test_one",)}
    )
    assert group.everything("a.py") == ("x.py",)
    (tmp_path / "t_1.py").touch()
    assert table.files(group.everything("b.py"), tmp_path) == ["t_1.py::test_one"]


def test_modules_are_selected_by_group_path_or_its_end() -> None:
    def selected(*names: str) -> list[str]:
        return [module for _, module in table.select([GROUP], names)]

    assert selected() == selected("Serving") == list(GROUP.modules)
    assert selected("tuning.py", "serving/tuning.py") == ["serving/tuning.py"]
    with pytest.raises(ValueError, match=r"other\.py"):
        selected("other.py")


def test_the_page_shows_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    assert scores.read(path) == {}
    measured = {"serving/tuning.py": Score(40, 80, 36, 40, seed=2), "serving/command.py": Score(10, 10, 5)}
    scores.write(measured, path)
    assert scores.read(path) == measured
    text = scores.page([GROUP], measured)
    assert "| `serving/tuning.py` | 40 of 80, seed 2 | 36 (90 %) | 40 (100 %) |\n" in text
    assert "| `serving/command.py` | 10 | 5 (50 %) |  |\n" in text
    assert "| together | 50 of 90 | 41 (82 %) |  |\n" in text
    assert "| `serving/command.py` | not measured | | |\n" in scores.page([GROUP], {})


def test_check_fails_when_the_page_is_not_what_the_scores_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "mutants.md"
    monkeypatch.setattr(scores, "PAGE", page)
    assert __main__.main(["--check"]) == 1
    assert "make generate" in capsys.readouterr().err
    assert __main__.main(["--page"]) == 0
    assert page.read_text() == scores.page(table.read()[0], scores.read())
    assert __main__.main(["--check"]) == 0


def test_scores_of_code_that_has_changed_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "plugins/encoder_plugins/serving/rounds.py"
    now = len(mutants.mutants((table.ROOT / module).read_text()))
    for of, listed in ((now, ""), (now + 1, f"{module}: {now + 1} mutants when it was measured, {now} now\n")):
        monkeypatch.setattr(scores, "read", lambda of=of: {module: Score(1, of, 1)})
        assert __main__.main(["--outdated"]) == 0
        assert capsys.readouterr().out == listed
