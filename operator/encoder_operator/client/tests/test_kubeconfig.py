"""Where the API server is: what KUBECONFIG may hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from encoder_operator.client import kubeconfig
from encoder_operator.client.errors import NotConfigured
from encoder_operator.revisions.hashing import Json


def write(path: Path, current: str | None = None, **content: dict[str, Json]) -> str:
    """Write a kubeconfig with the entries of each kind by their names, and return its path."""
    path.parent.mkdir(exist_ok=True)
    lists = {
        f"{kind}s": [{"name": name, kind: entry} for name, entry in entries.items()]
        for kind, entries in content.items()
    }
    path.write_text(yaml.safe_dump(lists | ({"current-context": current} if current else {})))
    return str(path)


def test_several_files_are_one_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = {"server": "https://a.example", "certificate-authority": "ca.crt"}
    paths = [
        str(tmp_path / "missing"),
        write(tmp_path / "one" / "config", cluster={"a": server}),
        write(
            tmp_path / "two" / "config",
            "chosen",
            context={"chosen": {"cluster": "a", "user": "u"}},
            user={"u": {"tokenFile": "token"}},
            cluster={"a": {"server": "https://second.example"}},
        ),
        write(tmp_path / "three" / "config", "other", context={"other": {"cluster": "a"}}),
    ]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(paths))
    found = kubeconfig.load()
    assert found is not None
    assert found.user is not None
    assert (found.context_name, found.cluster.server) == ("chosen", "https://a.example")
    assert found.abs_file(found.cluster.certificate_auth or "") == str(tmp_path / "one" / "ca.crt")
    assert found.user.token_file == str(tmp_path / "two" / "token")


def test_an_empty_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path / ".kube" / "config",
        "c",
        cluster={"c": {"server": "https://a.example"}},
        context={"c": {"cluster": "c"}},
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    found = kubeconfig.load()
    assert found is not None
    assert found.cluster.server == "https://a.example"


def test_files_that_do_not_exist_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(("/nowhere/a", "/nowhere/b")))
    with pytest.raises(NotConfigured, match="Configuration files /nowhere/a, /nowhere/b not found; set KUBECONFIG"):
        kubeconfig.load()
