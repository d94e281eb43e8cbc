"""Answers that a client pod has written are read until they are whole."""

import json
from typing import cast

import pytest

from encoder_platform import client
from encoder_platform.kube import Kube

WRITTEN = json.dumps([{"status": 200, "body": {"data": [1, 2]}}, {"status": 400, "body": "no"}])


class Kubectl:
    """Prints what a busy kubectl prints of a file."""

    def __init__(self, *printed: str) -> None:
        self.printed = list(printed)

    def run(self, *_: str) -> str:
        return self.printed.pop(0)


@pytest.mark.parametrize("cut", ["", "[", WRITTEN[:-1], WRITTEN[:30]])
def test_what_kubectl_cuts_off_is_read_again(cut: str) -> None:
    kubectl = Kubectl(cut, cut, WRITTEN)
    assert client.read_list(cast(Kube, kubectl), "space", "/tmp/answers.json") == json.loads(WRITTEN)
    assert kubectl.printed == []


def test_what_is_never_whole_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="without its end"):
        client.read_list(cast(Kube, Kubectl(*["["] * client.READS)), "space", "/tmp/answers.json")
