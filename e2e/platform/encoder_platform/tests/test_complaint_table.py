"""The documentation's table of what the field complains of."""

from pathlib import Path

import pytest

from encoder_platform import complaint_table

ALL = range(1, 26)


def written(root: Path, text: str) -> list[Path]:
    file = root / "operator" / "test_answers.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return [file]


def answering(number: object, marks: str = "") -> str:
    return f"{marks}@pytest.mark.complaint({number})\ndef test_{number}():\n    pass\n\n"


def test_every_complaint_is_a_row_with_its_tests(tmp_path: Path) -> None:
    text = "".join(map(answering, ALL)) + answering(7, "@pytest.mark.soak\n").replace("test_7", "test_again")
    page = complaint_table.page(complaint_table.answers(written(tmp_path, text), tmp_path))
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| |")]
    assert [int(row.split(" | ")[0].removeprefix("| ")) for row in rows] == list(ALL)
    file = "../operator/test_answers.py"
    assert rows[6].endswith(f"| [`test_7`]({file}), [`test_again`]({file}) (`make soak`) |")
    assert rows[7].endswith(f"| [`test_8`]({file}) |")


@pytest.mark.parametrize("marks", ["", "@pytest.mark.soak\n"], ids=["no-test", "only-soak"])
def test_a_complaint_without_a_test_in_ci_is_reported(tmp_path: Path, marks: str) -> None:
    text = "".join(answering(number) for number in ALL if number != 12) + (marks and answering(12, marks))
    with pytest.raises(ValueError, match=r"no test that CI runs .*\[12\]"):
        complaint_table.answers(written(tmp_path, text), tmp_path)


@pytest.mark.parametrize("argument", ["0", "26", '"7"', "7, 8", "number=7", ""])
def test_a_mark_without_a_number_of_a_complaint_is_refused(tmp_path: Path, argument: str) -> None:
    text = f"@pytest.mark.complaint({argument})\ndef test_it():\n    pass\n"
    with pytest.raises(ValueError, match=r"operator/test_answers\.py:1: pytest\.mark\.complaint takes"):
        complaint_table.answers(written(tmp_path, text), tmp_path)
