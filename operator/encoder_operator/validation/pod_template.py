"""Validate and merge `spec.serving.podTemplate`.

The overlay is a strategic merge, as in `kubectl patch`: maps are merged, lists of named entries are merged by name, and
other values are replaced. Fields that parity checks, probes, graceful shutdown or the restricted Pod Security Standard
depend on are rejected by path. So are fields that have an equivalent in `spec.serving`, because the prep Job and the
volume checks use those.
"""

from __future__ import annotations

import copy
import ipaddress
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from encoder_operator import naming
from encoder_operator.revisions.hashing import Json
from encoder_operator.validation import vllm_args

ENGINE = "engine"
OWN_VOLUMES = frozenset({"artifacts", "tmp", "shm"})

_HOST = "it would break the isolation between pod and node"
_PROFILE = "pods must comply with the restricted Pod Security Standard"
_PROBES = "readiness and the parity gate depend on it"
_SET = "reserved for the operator"
_TOKEN = "serving pods have no service account token"
_DNS = f"its name must have at most {naming.MAX_DNS_LABEL} lower-case letters, digits and '-', and begin and end with a letter or digit"
_OBJECT = "it must be the name of an object: at most 253 lower-case letters, digits, '-' and '.'"
_OTHER = "a pod template override cannot set this field"

# fields that an overlay may set, level by level; everything else is rejected, for some fields with a specific reason
_METADATA = frozenset({"annotations", "labels"})
_SPEC = frozenset(
    {
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "hostUsers",
        "initContainers",
        "preemptionPolicy",
        "schedulerName",
        "securityContext",
        "terminationGracePeriodSeconds",
        "volumes",
    }
)
_ENGINE = frozenset({"env", "name", "volumeMounts"})
_SIDECAR = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resources",
        "restartPolicy",
        "securityContext",
        "startupProbe",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "volumeMounts",
        "workingDir",
    }
)
_POD_CONTEXT = frozenset(
    {"fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsUser", "supplementalGroups", "supplementalGroupsPolicy"}
)
_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
_PROJECTED = frozenset({"configMap", "downwardAPI", "secret"})

# for the reference page
ALLOWED = (
    "Labels and annotations other than the operator's; `env` and `volumeMounts` of the container `engine` (content that `valueFrom` or a"
    " volume reads from a Secret or ConfigMap is not part of the revision: a restarted container sees the current content"
    " and is not verified again); additional containers and init containers, which get the restricted security context and read-only access to the artifacts; volumes that the"
    f" restricted Pod Security Standard allows ({', '.join(sorted(_VOLUMES))}); and the pod fields "
    + ", ".join(f"`{name}`" for name in sorted(_SPEC - {"containers", "initContainers", "volumes", "securityContext"}))
    + f", and `securityContext` with {', '.join(f'`{name}`' for name in sorted(_POD_CONTEXT))} (users and groups other than 0)."
)
DENIED: Mapping[str, str] = MappingProxyType(
    {
        "spec.activeDeadlineSeconds": "it would end serving pods",
        "spec.affinity": "use spec.serving.affinity",
        "spec.automountServiceAccountToken": _TOKEN,
        "spec.enableServiceLinks": "a Service named vllm would change the engine's settings",
        "spec.ephemeralContainers": "pod templates do not support ephemeral containers",
        "spec.hostIPC": _HOST,
        "spec.hostNetwork": _HOST,
        "spec.hostPID": _HOST,
        "spec.imagePullSecrets": "use spec.serving.imagePullSecrets",
        "spec.nodeName": "use spec.serving.nodeSelector",
        "spec.nodeSelector": "use spec.serving.nodeSelector, which the prep Job follows too",
        "spec.priorityClassName": "use spec.serving.priorityClassName",
        "spec.readinessGates": _PROBES,
        "spec.resourceClaims": "use spec.serving.resourceClaims",
        "spec.resources": "use spec.serving.resources",
        "spec.restartPolicy": "the pods of a Deployment are always restarted",
        "spec.runtimeClassName": "use spec.serving.runtimeClassName",
        "spec.serviceAccount": _TOKEN,
        "spec.serviceAccountName": _TOKEN,
        "spec.shareProcessNamespace": "other containers could send signals to the engine",
        "spec.tolerations": "use spec.serving.tolerations, which the prep Job follows too",
        "spec.topologySpreadConstraints": "use spec.serving.topologySpreadConstraints",
        "spec.containers[engine].args": "use spec.serving.args",
        "spec.containers[engine].command": _SET,
        "spec.containers[engine].envFrom": "it could set reserved variables: list each variable with valueFrom instead",
        "spec.containers[engine].image": "use spec.image",
        "spec.containers[engine].imagePullPolicy": "the administrator sets it for all EncoderModels",
        "spec.containers[engine].lifecycle": "without the operator's preStop hook, requests are lost when a pod terminates",
        "spec.containers[engine].livenessProbe": _PROBES,
        "spec.containers[engine].ports": "requests arrive on one port, which the operator sets",
        "spec.containers[engine].readinessProbe": _PROBES,
        "spec.containers[engine].resources": "use spec.serving.resources",
        "spec.containers[engine].restartPolicy": "the pods of a Deployment are always restarted",
        "spec.containers[engine].securityContext": _PROFILE,
        "spec.containers[engine].startupProbe": _PROBES,
        "spec.containers[engine].terminationMessagePath": "the operator reads the engine's termination message",
        "spec.containers[engine].terminationMessagePolicy": "the operator reads the engine's termination message",
    }
)
_FOREIGN_ANNOTATIONS = ("container.apparmor.security.beta.kubernetes.io/", "seccomp.security.alpha.kubernetes.io/")
# merge keys of lists; other lists are replaced as a whole
_KEYS = MappingProxyType(
    {
        "containers": "name",
        "env": "name",
        "hostAliases": "ip",
        "initContainers": "name",
        "ports": "containerPort",
        "volumeMounts": "mountPath",
        "volumes": "name",
    }
)
_WHOLE_DEFAULTS = MappingProxyType({"fieldRef": {"apiVersion": "v1"}, "resourceFieldRef": {"divisor": "0"}})
_LISTS = MappingProxyType({"add": str, "drop": str, "sources": dict})
# maps whose keys are the user's own
_FREE = frozenset({"annotations", "labels", "limits", "matchLabels", "requests", "volumeAttributes"})
_MAPS = frozenset({"capabilities", "metadata", "projected", "seccompProfile", "securityContext", "spec"})
# what the API server takes in names of variables, of ports, and in keys of Secrets and ConfigMaps
_VARIABLE = re.compile(r"[ -<>-~]+")
_PORT = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_KEY = re.compile(r"(?!\.\.?$|\.\.)[-._a-zA-Z0-9]{1,253}")
# entries that are a choice between several fields: merging would give a variable both a value and a source
_WHOLE = frozenset({"env", "volumes"})


class Violation(NamedTuple):
    """A path that an overlay must not set, and why."""

    path: str
    why: str


def merge(template: Json, overlay: Json, context: Json) -> Json:
    """Return `template` with `overlay` merged in.

    Args:
        template: The operator's pod template.
        overlay: The user's pod template override, in which `find_violation` has found nothing.
        context: The security context of the operator's containers, which additional containers get too.
    """
    found: Json = _merge_value(template, _with_defaults(overlay), "")
    own = {entry["name"] for entry in template["spec"]["containers"]}
    for kind in ("containers", "initContainers"):
        for added in found["spec"].get(kind, []):
            if added["name"] not in own:
                added["securityContext"] = context | added.get("securityContext", {})
    return found


def _with_defaults(value: Any) -> Any:
    """Add the API server's defaults to parts that are owned as a whole, which would otherwise differ in every reconcile."""
    if isinstance(value, list):
        return [_with_defaults(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    found = {key: _with_defaults(entry) for key, entry in value.items()}
    for name, default in _WHOLE_DEFAULTS.items():
        if isinstance(found.get(name), dict):
            found[name] = default | found[name]
    return found


def _merge_value(base: Any, over: Any, name: str) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {
            key: _merge_value(base[key], value, key) if key in base else copy.deepcopy(value)
            for key, value in over.items()
        }
    if isinstance(base, list) and isinstance(over, list) and name in _KEYS:
        key = _KEYS[name]
        further = {entry[key]: entry for entry in over}
        kept = [
            copy.deepcopy(further.pop(entry[key]))
            if name in _WHOLE and entry[key] in further
            else _merge_value(entry, further.pop(entry[key]), "")
            if entry[key] in further
            else entry
            for entry in base
        ]
        return [*kept, *(copy.deepcopy(entry) for entry in further.values())]
    return copy.deepcopy(over)


def find_violation(overlay: Json, grace: int) -> Violation | None:
    """Return the first violation in `overlay`, or None.

    Args:
        overlay: The user's pod template override.
        grace: Seconds that a pod needs to shut down.
    """
    return next(_check_structure(overlay, ""), None) or next(_check_content(overlay, grace), None)


def _check_structure(value: Any, path: str, *, free: bool = False) -> Iterator[Violation]:
    name = path.rpartition(".")[2]
    free = free or path.startswith("metadata.")
    if value is None:
        yield Violation(path, "an override can add and change fields, but not remove them")
    elif name in _MAPS and not free and not isinstance(value, dict):
        yield Violation(path, "it must be an object")
    elif (name in _KEYS or name in _LISTS) and not free and not isinstance(value, list):
        yield Violation(path, "it must be a list")
    elif isinstance(value, dict):
        for key, entry in value.items():
            where = f"{path}.{key}" if path else str(key)
            if key.startswith("$"):
                yield Violation(where, "patch directives are not supported: an override can only add and change fields")
            yield from _check_structure(entry, where, free=name in _FREE)
    elif isinstance(value, list):
        seen = set()
        for index, entry in enumerate(value):
            key = _KEYS.get(name)
            if key is not None and not (isinstance(entry, dict) and isinstance(entry.get(key), str | int)):
                yield Violation(f"{path}[{index}]", f"every entry needs {key}, which is its merge key")
                return
            if name in _LISTS and not isinstance(entry, _LISTS[name]):
                yield Violation(f"{path}[{index}]", f"it must be {'an object' if _LISTS[name] is dict else 'a string'}")
            if key is not None and entry[key] in seen:
                yield Violation(f"{path}[{entry[key]}]", "it is in the list twice")
            seen.add(entry[key] if key is not None else index)
            yield from _check_structure(entry, f"{path}[{entry[key] if key else index}]")


def _check_content(overlay: Json, grace: int) -> Iterator[Violation]:
    yield from _fields(overlay, "", frozenset({"metadata", "spec"}))
    meta, spec = overlay.get("metadata", {}), overlay.get("spec", {})
    yield from _fields(meta, "metadata.", _METADATA)
    for kind in ("annotations", "labels"):
        if not isinstance(meta.get(kind, {}), dict):
            yield Violation(f"metadata.{kind}", "it must be an object")
        for key in meta.get(kind, {}):
            if key.split("/")[0].endswith(naming.GROUP) or key == naming.MANAGED_BY:
                yield Violation(f"metadata.{kind}[{key}]", "the operator selects its objects by it")
            if kind == "annotations" and key.startswith(_FOREIGN_ANNOTATIONS):
                yield Violation(f"metadata.{kind}[{key}]", _PROFILE)
        yield from _pairs(kind, meta.get(kind, {}))
    yield from _fields(spec, "spec.", _SPEC)
    if spec.get("hostUsers"):
        yield Violation("spec.hostUsers", "only false is allowed, which enables a user namespace")
    wanted = spec.get("terminationGracePeriodSeconds", grace)
    if not isinstance(wanted, int) or wanted < grace:
        yield Violation("spec.terminationGracePeriodSeconds", f"in-flight requests need {grace} seconds to finish")
    yield from _pod_context(spec.get("securityContext", {}))
    for alias in spec.get("hostAliases", []):
        yield from _host_alias(alias)
    for volume in spec.get("volumes", []):
        yield from _volume(volume)
    volumes = {volume["name"] for volume in spec.get("volumes", [])} | OWN_VOLUMES
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind, []):
            where = f"spec.{kind}[{container['name']}]."
            if container["name"] != ENGINE:
                yield from _sidecar(container, where)
            elif kind == "containers":
                yield from _fields(container, where, _ENGINE)
            else:
                yield Violation(where.rstrip("."), "the engine must not be an init container")
            yield from _container(container, where, volumes)


def _pairs(kind: str, pairs: Mapping[Any, Any]) -> Iterator[Violation]:
    """Refuse labels or annotations that the API server refuses in a pod, which would be found only after the preparation."""
    pattern = naming.LABEL_KEY if kind == "labels" else naming.ANNOTATION_KEY
    for key, value in pairs.items():
        path = f"metadata.{kind}[{key}]"
        if not re.fullmatch(pattern, key) or len(key) > naming.MAX_LABEL_KEY:
            yield Violation(path, "it is not a qualified name, such as example.com/name")
        elif not isinstance(value, str):
            yield Violation(path, "its value must be a string")
        elif kind == "labels" and (not re.fullmatch(naming.LABEL_VALUE, value) or len(value) > naming.MAX_LABEL_VALUE):
            yield Violation(
                path,
                f"its value must have at most {naming.MAX_LABEL_VALUE} letters, digits, '-', '_' and '.', and begin and end with a"
                " letter or digit",
            )


def _is_dns_label(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= naming.MAX_DNS_LABEL and bool(re.fullmatch(naming.DNS_LABEL, name))


def _fields(found: Json, where: str, allowed: frozenset[str]) -> Iterator[Violation]:
    for name in found:
        if name not in allowed:
            path = f"{where}{name}"
            yield Violation(path, DENIED.get(path, _OTHER))


def _container(container: Json, where: str, volumes: Collection[str]) -> Iterator[Violation]:
    if not _is_dns_label(container["name"]):
        yield Violation(where.rstrip("."), _DNS)
    for variable in container.get("env", []):
        name = variable["name"]
        if name in vllm_args.DENIED_ENVIRONMENT and container["name"] == ENGINE:
            yield Violation(f"{where}env[{name}]", vllm_args.DENIED_ENVIRONMENT[name])
        if not _VARIABLE.fullmatch(str(name)):
            yield Violation(f"{where}env[{name}]", "its name must consist of printable ASCII characters other than '='")
        yield from _value_source(variable.get("valueFrom"), f"{where}env[{name}].valueFrom")
    for mount in container.get("volumeMounts", []):
        path = f"{where}volumeMounts[{mount['mountPath']}]"
        if not isinstance(mount["mountPath"], str) or not isinstance(mount.get("name", ""), str):
            yield Violation(path, "mountPath and name must be strings")
            continue
        own = mount.get("name") in OWN_VOLUMES
        if container["name"] == ENGINE and (own or _is_reserved_path(mount["mountPath"])):
            yield Violation(path, "the operator mounts artifacts, scratch space and shared memory")
        elif own and not (mount["name"] == "artifacts" and mount.get("readOnly") is True):
            yield Violation(path, "other containers may mount the artifacts only read-only (readOnly: true)")
        elif mount.get("name") not in volumes:
            yield Violation(path, f"the override has no volume {mount.get('name')}")


def _is_object_name(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= 253 and bool(re.fullmatch(naming.DNS_SUBDOMAIN, name))


def _value_source(source: Any, where: str) -> Iterator[Violation]:
    """Refuse a name or key that no object can have: until it is corrected, the API server refuses the Deployment."""
    for kind in ("configMapKeyRef", "secretKeyRef"):
        found = source.get(kind) if isinstance(source, dict) else None
        if not isinstance(found, dict):
            continue
        if not _is_object_name(found.get("name")):
            yield Violation(f"{where}.{kind}.name", _OBJECT)
        if not _KEY.fullmatch(str(found.get("key", ""))):
            yield Violation(f"{where}.{kind}.key", "it must consist of letters, digits, '-', '_' and '.'")


def _host_alias(alias: Json) -> Iterator[Violation]:
    path = f"spec.hostAliases[{alias['ip']}]"
    try:
        if "%" in str(alias["ip"]):
            raise ValueError
        ipaddress.ip_address(str(alias["ip"]))
    except ValueError:
        yield Violation(path, "it must be an IP address")
    names = alias.get("hostnames", [])
    if isinstance(names, list) and not all(map(_is_object_name, names)):
        yield Violation(f"{path}.hostnames", "a host's name has at most 253 lower-case letters, digits, '-' and '.'")


def _is_reserved_path(path: str) -> bool:
    """Return whether a mount would hide the artifact, the entry point, or a mount of the operator."""
    wanted = posixpath.normpath("/" + path.lstrip("/"))
    held = ("/artifacts", "/tmp", "/dev", "/opt", "/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/sys")
    inside = ("/artifacts", "/opt", "/usr", "/bin", "/lib", "/lib64", "/dev", "/proc", "/sys")
    return wanted == "/" or wanted in held or any(wanted.startswith(f"{entry}/") for entry in inside)


def _sidecar(container: Json, where: str) -> Iterator[Violation]:
    yield from _fields(container, where, _SIDECAR)
    if not isinstance(container.get("image"), str) or not container["image"].strip():
        yield Violation(f"{where}image", "an additional container needs an image")
    elif not re.fullmatch(naming.IMAGE, container["image"]):
        yield Violation(f"{where}image", naming.NOT_AN_IMAGE)
    for port in container.get("ports", []):
        path = f"{where}ports[{port['containerPort']}]"
        if not isinstance(port["containerPort"], int) or not 1 <= port["containerPort"] <= 65535:
            yield Violation(path, "a port is a number from 1 to 65535")
        if "name" in port and not _PORT.fullmatch(str(port["name"])):
            yield Violation(
                f"{path}.name", "it must have at most 15 lower-case letters, digits and '-', and at least one letter"
            )
        if port.get("hostPort"):
            yield Violation(f"{path}.hostPort", _HOST)
        if port["containerPort"] == 8000 or port.get("name") == "http":
            yield Violation(path, "reserved for the engine's port")
    context = container.get("securityContext", {})
    capabilities = context.get("capabilities", {})
    loose = (
        ("allowPrivilegeEscalation", context.get("allowPrivilegeEscalation", False) is not False),
        ("privileged", context.get("privileged", False) is not False),
        ("runAsNonRoot", context.get("runAsNonRoot", True) is not True),
        ("runAsUser", context.get("runAsUser", 1) == 0),
        ("runAsGroup", context.get("runAsGroup", 1) == 0),
        ("capabilities.add", not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}),
        ("capabilities.drop", "ALL" not in capabilities.get("drop", ["ALL"])),
        ("seccompProfile", context.get("seccompProfile", {}).get("type", "") == "Unconfined"),
        *((name, name in context) for name in ("appArmorProfile", "procMount", "seLinuxOptions", "windowsOptions")),
    )
    yield from (Violation(f"{where}securityContext.{name}", _PROFILE) for name, found in loose if found)


def _pod_context(context: Json) -> Iterator[Violation]:
    for name, value in context.items():
        # whatever has this number belongs to root: a user, a group, the group of volumes, or one of several groups
        several = value if isinstance(value, list) else [value]
        if name not in _POD_CONTEXT or 0 in several:
            yield Violation(f"spec.securityContext.{name}", _PROFILE)
        elif name == "supplementalGroups" and several is not value:
            yield Violation(f"spec.securityContext.{name}", "it must be a list")


def _volume(volume: Json) -> Iterator[Violation]:
    where = f"spec.volumes[{volume['name']}]"
    if volume["name"] in OWN_VOLUMES:
        yield Violation(where, "reserved for artifacts, scratch space and shared memory")
    elif not _is_dns_label(volume["name"]):
        yield Violation(where, _DNS)
    elif len(volume) != 2:
        yield Violation(where, f"it must have exactly one of {', '.join(sorted(_VOLUMES))}")
    for kind in volume:
        if kind != "name" and kind not in _VOLUMES:
            yield Violation(f"{where}.{kind}", _HOST if kind == "hostPath" else _PROFILE)
    for index, source in enumerate(volume.get("projected", {}).get("sources", [])):
        for kind in sorted(source.keys() - _PROJECTED):
            why = _TOKEN if kind == "serviceAccountToken" else _OTHER
            yield Violation(f"{where}.projected.sources[{index}].{kind}", why)
