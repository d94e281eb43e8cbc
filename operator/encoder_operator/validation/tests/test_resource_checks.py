"""Resources and sizes that the API server refuses in a child: they are refused by field before the preparation."""

from __future__ import annotations

from typing import Any

import pytest

from encoder_operator.status.reasons import Reason
from encoder_operator.tests.harness import parsed_model
from encoder_operator.validation.errors import NotAccepted

CPU = {"cpu": 1}


@pytest.mark.parametrize("part", ["serving", "prepare"])
@pytest.mark.parametrize(
    ("limits", "name", "why"),
    [
        ({"hugepages-2Mi": "4Mi"}, "hugepages-2Mi", "need a request or limit of cpu or memory"),
        ({"hugepages-3Mi": "4Mi"} | CPU, "hugepages-3Mi", "4Mi is not a multiple of the page size"),
        ({"hugepages-big": "4Mi"} | CPU, "hugepages-big", "the name must end with the size of a page"),
        ({"hugepages-0": "4Mi"} | CPU, "hugepages-0", "the name must end with the size of a page"),
        ({"hugepages-500m": "4Mi"} | CPU, "hugepages-500m", "the name must end with the size of a page"),
        ({"requests.example.com/nic": 1}, "requests.example.com/nic", "belong to quotas: use example.com/nic"),
    ],
)
def test_a_resource_that_no_container_can_have_is_refused_by_field(
    part: str, limits: dict[str, Any], name: str, why: str
) -> None:
    serving = {"accelerator": "cpu", "resources": {"limits": limits}}
    changes: dict[str, Any] = (
        {"spec.serving": serving} if part == "serving" else {"spec.prepare": {"resources": {"limits": limits}}}
    )
    with pytest.raises(NotAccepted, match=why) as refused:
        parsed_model(changes)
    assert refused.value.reason is Reason.INVALID_SPEC
    assert refused.value.message.startswith(f"spec.{part}.resources.limits.{name}: ")


@pytest.mark.parametrize("limits", [{"hugepages-1Gi": "2Gi", "hugepages-2Mi": "1Gi"} | CPU, {"hugepages-2Mi": 0} | CPU])
def test_huge_pages_are_accepted_beside_cpu(limits: dict[str, Any]) -> None:
    parsed_model({"spec.serving.resources": {"limits": limits}})
    parsed_model({"spec.serving.resources": {"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"memory": "1Gi"}}})


@pytest.mark.parametrize("size", ["0", "0Gi", 0])
def test_a_volume_of_no_bytes_is_refused(size: object) -> None:
    with pytest.raises(NotAccepted, match=r"spec\.storage\.create\.size: ") as refused:
        parsed_model({"spec.storage": {"create": {"size": size}}})
    assert refused.value.reason is Reason.INVALID_SPEC
