import re
from pathlib import Path

import pytest

from encoder_node.targets import ROOT
from encoder_release import __main__ as command
from encoder_release import build, plan, release
from encoder_release.provenance import Source


def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main({"REGISTRY": " ", "VERSION": ""}) == 1
    assert capsys.readouterr().err == (
        "make release: REGISTRY is empty: set it to a registry and a path that you can push to\n"
    )


def test_uncommitted_changes_are_not_released(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = Source(commit="1" * 40, time="2026-01-02T03:04:05Z", changed=True)
    monkeypatch.setattr(release, "checkout", lambda *_: changed)
    assert command.main({"REGISTRY": "images.example.org"}) == 1
    assert "uncommitted changes" in capsys.readouterr().err


def test_images_with_bases_of_this_machine_stay_on_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "docker_answers", lambda: False)
    with pytest.raises(plan.ReleaseError, match="no Docker daemon answers"):
        build.build(plan.Release(registry="images.example.org", version="1.0.0", images=()), tmp_path)


def test_the_makefile_passes_what_the_command_reads() -> None:
    text = Path(command.__file__).read_text()
    target = (ROOT / "Makefile").read_text().partition("\nrelease: ")[2].partition("\n\n")[0]
    assert set(re.findall(r'value\("([A-Z_]+)"\)', text)) == set(re.findall(r'([A-Z_]+)="\$\(\1\)"', target))


def test_the_checkout_is_described_by_its_commit() -> None:
    found = release.checkout("https://git.example.org/encoders", "")
    assert re.fullmatch(r"[0-9a-f]{40}", found.commit)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found.time)
    assert (found.url, found.builder) == ("https://git.example.org/encoders", "urn:encoder-operator:workstation")
