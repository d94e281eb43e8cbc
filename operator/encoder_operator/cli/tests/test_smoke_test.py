"""`encoder-operator smoke-test` on an API server in memory. On a real one: e2e/api/test_helm_test.py."""

from __future__ import annotations

import copy

import pytest

from encoder_operator.cli import smoke_test
from encoder_operator.client.client import Client
from encoder_operator.tests.fake_cluster import FakeCluster
from encoder_operator.tests.harness import encoder_model


async def test_a_model_of_the_user_is_neither_changed_nor_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeCluster()
    live = copy.deepcopy(fake.put("encodermodels", encoder_model()))
    client = Client(config=FakeCluster.config(), transport=fake)
    assert await smoke_test.run(client, "demo", "minilm", smoke_test.VALID_SPEC, 0.1) == 1
    assert fake.objects["encodermodels", "demo", "minilm"] == live
    assert "EncoderModel minilm exists in namespace demo and was not created by a smoke test" in capsys.readouterr().err


async def test_what_an_interrupted_smoke_test_left_is_used_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke_test, "_PAUSE_SECONDS", 0.01)
    fake = FakeCluster()
    client = Client(config=FakeCluster.config(), transport=fake)
    left = smoke_test._model("demo", "minilm", smoke_test.VALID_SPEC)
    fake.put("encodermodels", left)
    assert await smoke_test.run(client, "demo", "minilm", smoke_test.VALID_SPEC, 0.05) == 1
    assert fake.writes == ["PATCH encodermodels minilm", "DELETE encodermodels minilm"]
