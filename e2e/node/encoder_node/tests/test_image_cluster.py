"""The images on the real node: what runs in them, what a change of our code costs, and what is on the disk."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from encoder_node import cluster as clusters
from encoder_node import image_store, images, layouts, linking, targets
from encoder_node.errors import CommandFailedError
from encoder_node.node import NodeCluster
from encoder_plugins import catalog

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
PLUGIN = next(iter(catalog.plugins()))
ENGINE, PREP = f"engine-{PLUGIN}-cpu", f"prep-{PLUGIN}"
EVERY = {target.name: target for target in targets.current()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    found = clusters.detect()
    if not isinstance(found, NodeCluster):
        pytest.skip("a Docker daemon answers: Docker builds the images")
    was_up = found.sandbox.init is not None
    found.up()
    yield found
    if not was_up:
        found.down()


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, which may change meanwhile."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=targets.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    folder = tmp_path_factory.mktemp("checkout")
    for name in listed.rstrip("\0").split("\0"):
        source, copy = targets.ROOT / name, folder / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    return folder


@pytest.fixture(scope="module")
def provided(cluster: NodeCluster, frozen: Path) -> Mapping[str, str]:
    return images.provide(cluster, context=frozen)


@pytest.fixture
def checkout(frozen: Path, tmp_path: Path) -> Path:
    """A copy of what images are made of, to change."""
    shutil.copytree(frozen, tmp_path / "checkout")
    return tmp_path / "checkout"


def run_in_pod(cluster: NodeCluster, image: str, command: list[str]) -> str:
    """Runs a command as our pods run: any user, read-only root, no capabilities; returns what it printed."""
    security = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "securityContext": security,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "image-test"}, "spec": spec}
    kubectl = [str(cluster.bin_dir / "kubectl"), "--kubeconfig", str(cluster.kubeconfig()), "--namespace", "default"]
    subprocess.run([*kubectl, "create", "-f", "-"], input=json.dumps(manifest), text=True, check=True)
    try:
        waiting = ["wait", "--for=jsonpath={.status.containerStatuses[0].state.terminated}", "pod/image-test"]
        subprocess.run([*kubectl, *waiting, "--timeout=120s"], capture_output=True, check=True)
        return subprocess.run([*kubectl, "logs", "image-test"], capture_output=True, text=True, check=True).stdout
    finally:
        subprocess.run([*kubectl, "delete", "pod", "image-test", "--wait=true"], capture_output=True, check=True)


def image(cluster: NodeCluster, reference: str) -> layouts.Image:
    layout = images.Places(cluster.settings.paths.cache).layout
    return layouts.read_image(layout, reference.rpartition("@")[2])


def test_node_knows_each_image_by_what_pods_name(cluster: NodeCluster, provided: Mapping[str, str]) -> None:
    present = cluster.images()
    for reference in provided.values():
        assert present[image_store.normalized(reference)] == reference.rpartition("@")[2]


def test_engine_finds_every_inspected_model_class(cluster: NodeCluster, provided: Mapping[str, str]) -> None:
    script = (
        "import encoder_plugins\n"
        "from encoder_plugins import catalog\n"
        "from vllm.model_executor.models import registry\n"
        "encoder_plugins.register()\n"
        "own = [name for plugin in catalog.plugins().values() for name in plugin.architectures]\n"
        # a query by a process of its own is what must not happen
        "registry._run_in_subprocess = None\n"
        "for name in ('Qwen3ForCausalLM', 'Gemma3TextModel', *own):\n"
        "    print('known', registry.ModelRegistry.models[name].inspect_model_cls().architecture)\n"
    )
    printed = run_in_pod(cluster, provided[ENGINE], ["python", "-c", script])
    own = [name for plugin in catalog.plugins().values() for name in plugin.architectures]
    assert printed.count("known") == 2 + len(own)


# the original library is in an environment of its own, and what calls it can be imported only there
REFERENCE = (
    "import sys\n"
    "from encoder_plugins import catalog\n"
    "from encoder_plugins.plugin import resolve\n"
    "print('finds', resolve(catalog.get(sys.argv[1]).recorder).record.__name__)\n"
)


@pytest.mark.parametrize(
    ("name", "command", "expected"),
    [
        (ENGINE, ["encoder-plugins", "list"], PLUGIN),
        *(
            pytest.param(
                f"prep-{plugin.name}",
                ["/opt/reference/bin/python", "-c", REFERENCE, plugin.name],
                "finds record",
                # all of them record in test_every_plugin_answers.py
                marks=[pytest.mark.soak] if number else [],
            )
            for number, plugin in enumerate(
                {plugin.reference_library: plugin for plugin in catalog.plugins().values()}.values()
            )
        ),
        ("operator", ["encoder-plugins", "list"], PLUGIN),
        (
            "operator",
            ["python", "-c", "import importlib.util as u; print('torch', u.find_spec('torch'))"],
            "torch None",
        ),
        ("e2e", ["curl", "--version"], "curl"),
    ],
)
def test_image_runs_read_only_as_any_user(
    cluster: NodeCluster, provided: Mapping[str, str], name: str, command: list[str], expected: str
) -> None:
    assert re.search(expected, run_in_pod(cluster, provided[name], command))


def test_engines_bytecode_is_all_there(cluster: NodeCluster, provided: Mapping[str, str]) -> None:
    script = (
        "import pathlib\n"
        "for root in ('/opt/venv/lib', '/opt/encoder'):\n"
        "    made = {path.name.split('.')[0] for path in pathlib.Path(root).rglob('__pycache__/*.pyc')}\n"
        "    sources = {path.stem for path in pathlib.Path(root).rglob('*.py')}\n"
        "    print(root, len(sources & made) / len(sources) > 0.99)\n"
    )
    printed = run_in_pod(cluster, provided[ENGINE], ["python", "-c", script])
    assert printed.split() == ["/opt/venv/lib", "True", "/opt/encoder", "True"]


def test_operator_is_small(cluster: NodeCluster, provided: Mapping[str, str]) -> None:
    assert image(cluster, provided["operator"]).size <= 250e6


def test_heavy_layers_are_shared_and_once_on_the_disk(cluster: NodeCluster, provided: Mapping[str, str]) -> None:
    engine, prep = image(cluster, provided[ENGINE]), image(cluster, provided[PREP])
    shared = [layer for layer in engine.layers if layer in prep.layers]
    assert sum(layer.size for layer in shared) > 0.9 * engine.size
    places = images.Places(cluster.settings.paths.cache)
    large = [layer for layer in shared if layer.size > 1 << 30]
    assert large
    assert all(layouts.is_hollow(layouts.blob_path(places.layout, layer.digest)) for layer in large)
    libraries = cluster.settings.paths.containerd.glob(
        "*/snapshots/*/fs/opt/venv/lib/*/site-packages/torch/lib/libtorch_cpu.so"
    )
    # one name on the node, one in BuildKit's cache
    assert 2 in [path.stat().st_nlink for path in libraries]


def test_a_second_run_changes_nothing(cluster: NodeCluster, provided: Mapping[str, str], frozen: Path) -> None:
    assert images.provide(cluster, context=frozen) == provided


@pytest.mark.soak
def test_change_of_our_code_moves_no_large_layer(
    cluster: NodeCluster, provided: Mapping[str, str], checkout: Path
) -> None:
    module = checkout / "plugins/encoder_plugins/__init__.py"
    module.write_text(f"{module.read_text()}\n# changed at {time.time()}\n")
    chosen = [
        replace(EVERY[name], reference=f"encoder-operator/changed-{number}:1")
        for number, name in enumerate((ENGINE, PREP, "operator"))
    ]
    began = time.monotonic()
    digests = images.build(chosen, cluster.settings, context=checkout)
    images.load(cluster, chosen, digests, images.Places(cluster.settings.paths.cache))
    print(f"{len(chosen)} images on the node {time.monotonic() - began:.1f} s after a change of our code")
    present = cluster.images()
    layout = images.Places(cluster.settings.paths.cache).layout
    for target in chosen:
        before, after = (
            [layer.digest for layer in layouts.read_image(layout, digest).layers if layer.size >= linking.WORTHWHILE]
            for digest in (provided[target.name].rpartition("@")[2], digests[target.name])
        )
        assert after == before
        assert digests[target.name] not in provided[target.name]
        assert present[image_store.normalized(target.reference)] == digests[target.name]
    cluster.store.ctr("images", "rm", *(name for name in present if "/changed-" in name))


def test_operators_code_is_no_part_of_engines(
    cluster: NodeCluster, provided: Mapping[str, str], checkout: Path
) -> None:
    module = checkout / "operator/encoder_operator/__init__.py"
    module.write_text(f"{module.read_text()}\n# changed\n")
    (checkout / "README.md").write_text("changed\n")
    digests = images.build([EVERY[ENGINE], EVERY[PREP]], cluster.settings, context=checkout)
    assert {name: reference.rpartition("@")[2] for name, reference in provided.items() if name in digests} == digests


def test_cuda_image_adds_our_package_to_the_base(cluster: NodeCluster, checkout: Path) -> None:
    target = EVERY[f"engine-{PLUGIN}-cuda"]
    digest = images.build([target], cluster.settings, context=checkout)[target.name]
    found = image(cluster, f"x@{digest}")
    assert sum(layer.size for layer in found.layers[-4:]) < 10e6


def test_cuda_image_refuses_a_base_with_another_vllm(cluster: NodeCluster, checkout: Path) -> None:
    dockerfile = checkout / "images/engine/Dockerfile"
    name, version = images.standin_for(dockerfile.read_text())
    dockerfile.write_text(dockerfile.read_text().replace(name, f"{name.removesuffix(version)}0.1.2"))
    with pytest.raises(CommandFailedError) as failure:
        images.build([EVERY[f"engine-{PLUGIN}-cuda"]], cluster.settings, context=checkout)
    assert f"the base image has vLLM 0.1.2, uv.lock says {version}" in failure.value.explain()
