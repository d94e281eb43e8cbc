"""The kinds of objects that the operator reads or writes."""

from __future__ import annotations

from typing import Any

from lightkube.generic_resource import create_global_resource, create_namespaced_resource

from encoder_operator import naming

KINDS: dict[str, Any] = {
    naming.KIND: create_namespaced_resource(naming.GROUP, naming.VERSION, naming.KIND, naming.PLURAL),
    "ControllerRevision": create_namespaced_resource("apps", "v1", "ControllerRevision", "controllerrevisions"),
    "Deployment": create_namespaced_resource("apps", "v1", "Deployment", "deployments"),
    "ReplicaSet": create_namespaced_resource("apps", "v1", "ReplicaSet", "replicasets"),
    "Job": create_namespaced_resource("batch", "v1", "Job", "jobs"),
    "Pod": create_namespaced_resource("", "v1", "Pod", "pods"),
    "Service": create_namespaced_resource("", "v1", "Service", "services"),
    "PersistentVolumeClaim": create_namespaced_resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    "ConfigMap": create_namespaced_resource("", "v1", "ConfigMap", "configmaps"),
    "Event": create_namespaced_resource("", "v1", "Event", "events"),
    "Namespace": create_global_resource("", "v1", "Namespace", "namespaces"),
    "Node": create_global_resource("", "v1", "Node", "nodes"),
    "NetworkPolicy": create_namespaced_resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    "PodDisruptionBudget": create_namespaced_resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    "HTTPRoute": create_namespaced_resource("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
    "Lease": create_namespaced_resource("coordination.k8s.io", "v1", "Lease", "leases"),
    "CustomResourceDefinition": create_global_resource(
        "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"
    ),
    "StorageClass": create_global_resource("storage.k8s.io", "v1", "StorageClass", "storageclasses"),
}
