"""The documentation's table of faults."""

from pathlib import Path

import pytest

from encoder_platform import fault_table

MARKED = """
import pytest, something_that_is_not_installed

@pytest.mark.fault("a wire is cut", "`Stalled | Waiting`, "
                   "and an Event", "goes on")
@pytest.mark.soak
def test_wire():
    pass

def test_without_a_mark():
    pass

@pytest.mark.parametrize("wire", ["short", pytest.param("long", marks=pytest.mark.soak)])
@pytest.mark.fault("a wire is bent", "nothing", "nothing")
def test_bent_wire(wire):
    pass
"""


def written(root: Path, folder: str, text: str) -> Path:
    file = root / folder / "test_wires.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def test_a_mark_is_a_row_under_its_folder(tmp_path: Path) -> None:
    written(tmp_path, "plugins/x/tests", MARKED)
    page = fault_table.page(fault_table.faults(fault_table.marked_files(tmp_path), tmp_path))
    rows = [line for line in page.splitlines() if line.startswith("| ") and "fault |" not in line]
    link = "[`test_wire`](../plugins/x/tests/test_wires.py)"
    assert rows == [
        f"| a wire is cut | `Stalled / Waiting`, and an Event | goes on | {link} (`make soak`) |",
        f"| a wire is bent | nothing | nothing | {link.replace('test_wire`', 'test_bent_wire`')} |",
    ]
    assert fault_table.FOLDERS["plugins"] in page
    assert fault_table.FOLDERS["operator"] not in page


@pytest.mark.parametrize("arguments", ['"only", "two"', '"a", "b", f"c{1}"', '"a", "b", ""', '"a", "b", "c", more=1'])
def test_an_incomplete_mark_is_rejected(tmp_path: Path, arguments: str) -> None:
    file = written(tmp_path, "operator", f"@pytest.mark.fault({arguments})\ndef test_it():\n    pass\n")
    with pytest.raises(ValueError, match=r"operator/test_wires\.py:1: pytest\.mark\.fault takes three"):
        fault_table.faults([file], tmp_path)
