import pytest

from encoder_node import targets
from encoder_plugins import catalog
from encoder_release.plan import ReleaseError, is_loopback, plan

REGISTRY = "images.example.org/team"
TARGETS = targets.targets(catalog.plugins().values(), "1.2.0")


def test_a_release_has_every_image_but_the_tests_own() -> None:
    release = plan(REGISTRY + "/", "1.2.0-rc.1", "1.2.0", TARGETS)
    assert {image.target.name for image in release.images} == {target.name for target in TARGETS} - {"e2e"}
    by_name = {image.target.name: image for image in release.images}
    assert release.reference(by_name["operator"]) == f"{REGISTRY}/encoder-operator/operator:1.2.0-rc.1"
    assert release.reference(by_name["engine-colbert-cpu"]).endswith("/engine-colbert:1.2.0-rc.1-cpu")
    assert release.reference(by_name["operator"], "sha256:1") == f"{REGISTRY}/encoder-operator/operator@sha256:1"
    assert release.chart == f"{REGISTRY}/charts/encoder-operator"


def test_some_images_are_released_by_name() -> None:
    release = plan(REGISTRY, "1.2.0", "1.2.0", TARGETS, "prep-colbert, operator")
    assert [image.target.name for image in release.images] == ["prep-colbert", "operator"]


@pytest.mark.parametrize(
    ("registry", "version", "only", "words"),
    [
        ("", "1.2.0", "", "REGISTRY is empty"),
        ("oci://images.example.org", "1.2.0", "", "without a scheme"),
        ("images.example.org/Team", "1.2.0", "", "invalid"),
        ("images.example.org/team:1", "1.2.0", "", "invalid"),
        (REGISTRY, "v1.2.0", "", "semantic version such as 1.2.0"),
        (REGISTRY, "1.3.0", "", "pyproject.toml has 1.2.0"),
        (REGISTRY, "1.2.01", "", "pyproject.toml has 1.2.0"),
        (REGISTRY, "1.2.0", "operatr", "unknown image 'operatr'"),
        (REGISTRY, "1.2.0", "e2e", "unknown image 'e2e'"),
    ],
)
def test_what_cannot_be_released_is_refused(registry: str, version: str, only: str, words: str) -> None:
    with pytest.raises(ReleaseError, match=words):
        plan(registry, version, "1.2.0", TARGETS, only)


@pytest.mark.parametrize(
    ("registry", "expected"),
    [
        ("localhost:5000", True),
        ("localhost/team", True),
        ("127.0.0.1:5000/team", True),
        ("127.0.0.1", True),
        ("localhost.example.org:5000", False),
        ("10.0.0.1:5000", False),
        (REGISTRY, False),
    ],
)
def test_a_registry_on_this_machine_is_recognized(registry: str, expected: bool) -> None:
    assert is_loopback(registry) is expected
