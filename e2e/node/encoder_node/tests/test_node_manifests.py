from pathlib import Path

import pytest

from encoder_node import manifests, volumes
from encoder_node.api_server import PLURALS, path_of
from encoder_node.errors import NodeError
from encoder_node.settings import Volumes

FOLDER = Path("/volumes")


def test_default_class_provisions_nothing_and_waits_for_the_pod() -> None:
    storage_class = manifests.storage(Volumes(), FOLDER, "n")[0]
    assert storage_class["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}
    assert storage_class["provisioner"] == "kubernetes.io/no-provisioner"
    assert storage_class["volumeBindingMode"] == "WaitForFirstConsumer"


def test_volumes_are_local_so_that_fs_group_works() -> None:
    volumes = manifests.persistent_volumes(Volumes(count=3, size="7Gi"), FOLDER, "n")
    assert [volume["spec"]["local"]["path"] for volume in volumes] == [f"/volumes/local-0{i}" for i in (1, 2, 3)]
    for volume in volumes:
        assert volume["spec"]["capacity"] == {"storage": "7Gi"}
        assert set(volume["spec"]["accessModes"]) == {"ReadWriteOnce", "ReadWriteMany"}
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_every_object_of_up_has_a_path() -> None:
    objects = [
        *manifests.kubelet_client(),
        *manifests.storage(Volumes(), FOLDER, "n"),
        *manifests.cluster_dns("localhost/coredns:1", "10.96.0.10"),
    ]
    paths = [path_of(item) for item in objects]
    assert len(set(paths)) == len(objects)
    assert {item["kind"] for item in objects} <= set(PLURALS)


def test_paths_follow_group_and_namespace() -> None:
    meta = {"name": "a", "namespace": "b"}
    assert (
        path_of({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta})
        == "/apis/apps/v1/namespaces/b/deployments/a"
    )
    assert (
        path_of({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "a"}})
        == "/api/v1/persistentvolumes/a"
    )


def test_unknown_kind_is_an_error_that_names_it() -> None:
    with pytest.raises(NodeError, match="kind Pod"):
        path_of({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})


def test_only_released_volumes_of_ours_are_used_again() -> None:
    phases = {"local-01": "Bound", "local-02": "Released", "small": "Released", "local-03": "Available"}
    listing = [{"metadata": {"name": name}, "status": {"phase": phase}} for name, phase in phases.items()]
    assert volumes.released(listing, ["local-01", "local-02", "local-03"]) == ["local-02"]
