from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_operator.resources import pod_defaults, serving_pod_template
from encoder_operator.revisions.hashing import Json
from encoder_operator.tests.harness import SETTINGS, parsed_model
from encoder_operator.validation import pod_template

CONTEXT = pod_defaults.container_context()
TEMPLATE: Json = {
    "metadata": {"labels": {"encoders.dev/model": "m"}},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "env": [{"name": "HOME", "value": "/tmp"}, {"name": "A", "value": "1"}],
                "volumeMounts": [{"name": "artifacts", "mountPath": "/artifacts", "readOnly": True}],
                "securityContext": CONTEXT,
            }
        ],
        "volumes": [{"name": "artifacts", "persistentVolumeClaim": {"claimName": "c"}}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
    },
}


def merged(**overlaid: Any) -> Json:
    return pod_template.merge(TEMPLATE, overlaid, CONTEXT)


def engine(found: Json) -> Json:
    return next(entry for entry in found["spec"]["containers"] if entry["name"] == "engine")


def test_labels_and_annotations_are_added() -> None:
    found = merged(metadata={"labels": {"team": "search"}, "annotations": {"mesh": "off"}})
    assert found["metadata"] == {
        "labels": {"encoders.dev/model": "m", "team": "search"},
        "annotations": {"mesh": "off"},
    }


def test_variables_are_merged_by_name_and_one_of_the_same_name_is_replaced_whole() -> None:
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = [{"name": "A", "valueFrom": secret}, {"name": "B", "value": "2"}]
    found = engine(merged(spec={"containers": [{"name": "engine", "env": env}]}))
    assert found["env"] == [{"name": "HOME", "value": "/tmp"}, {"name": "A", "valueFrom": secret}, env[1]]
    assert found["volumeMounts"] == TEMPLATE["spec"]["containers"][0]["volumeMounts"]


def test_volumes_and_mounts_are_added_beside_ours() -> None:
    found = merged(
        spec={
            "volumes": [{"name": "cache", "emptyDir": {}}],
            "containers": [{"name": "engine", "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}],
        }
    )
    assert [entry["name"] for entry in found["spec"]["volumes"]] == ["artifacts", "cache"]
    assert [entry["mountPath"] for entry in engine(found)["volumeMounts"]] == ["/artifacts", "/cache"]


def test_parts_that_are_owned_as_a_whole_have_the_defaults_of_the_api_server() -> None:
    sources = [
        {"fieldRef": {"fieldPath": "metadata.name"}},
        {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}},
    ]
    variables = [{"name": name, "valueFrom": source} for name, source in zip("AB", sources, strict=True)]
    env = engine(merged(spec={"containers": [{"name": "engine", "env": variables}]}))["env"]
    assert [variable["valueFrom"] for variable in env if variable["name"] in "AB"] == [
        {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}},
        {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}},
    ]


def test_maps_are_merged_and_plain_values_and_lists_replaced() -> None:
    found = merged(
        spec={"securityContext": {"fsGroup": 7}, "schedulerName": "mine", "dnsConfig": {"nameservers": ["192.0.2.1"]}}
    )
    assert found["spec"]["securityContext"] == {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 7}
    assert found["spec"]["schedulerName"] == "mine"
    assert found["spec"]["dnsConfig"] == {"nameservers": ["192.0.2.1"]}


def test_an_added_container_gets_the_restricted_security_context() -> None:
    found = merged(
        spec={
            "containers": [{"name": "log", "image": "log:1", "securityContext": {"readOnlyRootFilesystem": False}}],
            "initContainers": [{"name": "wait", "image": "wait:1"}],
        }
    )
    assert [entry["name"] for entry in found["spec"]["containers"]] == ["engine", "log"]
    assert found["spec"]["containers"][1]["securityContext"] == CONTEXT | {"readOnlyRootFilesystem": False}
    assert found["spec"]["initContainers"][0]["securityContext"] == CONTEXT


def test_the_template_itself_is_left_alone() -> None:
    before = copy.deepcopy(TEMPLATE)
    found = merged(spec={"containers": [{"name": "engine", "env": [{"name": "B", "value": "2"}]}]})
    engine(found)["env"].clear()
    assert before == TEMPLATE


def engine_with(**fields: Any) -> Json:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def sidecar(**fields: Any) -> Json:
    return {"spec": {"containers": [{"name": "log", "image": "log:1", **fields}]}}


REFUSED = [
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
    ({"spec": {"hostPID": True}}, "spec.hostPID"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC"),
    ({"spec": {"hostUsers": True}}, "spec.hostUsers"),
    ({"spec": {"serviceAccountName": "root"}}, "spec.serviceAccountName"),
    ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
    ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
    ({"spec": {"readinessGates": []}}, "spec.readinessGates"),
    ({"spec": {"shareProcessNamespace": True}}, "spec.shareProcessNamespace"),
    ({"spec": {"nodeSelector": {"a": "b"}}}, "spec.nodeSelector"),
    ({"spec": {"tolerations": []}}, "spec.tolerations"),
    ({"spec": {"imagePullSecrets": []}}, "spec.imagePullSecrets"),
    ({"spec": {"terminationGracePeriodSeconds": 30}}, "spec.terminationGracePeriodSeconds"),
    ({"spec": {"terminationGracePeriodSeconds": "long"}}, "spec.terminationGracePeriodSeconds"),
    ({"spec": {"containrs": []}}, "spec.containrs"),
    ({"status": {}}, "status"),
    ({"spec": []}, "spec"),
    ({"metadata": {"name": "x"}}, "metadata.name"),
    ({"metadata": {"labels": []}}, "metadata.labels"),
    ({"metadata": {"labels": {"encoders.dev/model": "other"}}}, "metadata.labels[encoders.dev/model]"),
    (
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}},
        "metadata.labels[app.kubernetes.io/managed-by]",
    ),
    (
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/engine": "unconfined"}}},
        "metadata.annotations[container.apparmor.security.beta.kubernetes.io/engine]",
    ),
    ({"spec": {"securityContext": {"runAsUser": 0}}}, "spec.securityContext.runAsUser"),
    ({"spec": {"securityContext": {"runAsGroup": 0}}}, "spec.securityContext.runAsGroup"),
    ({"spec": {"securityContext": {"fsGroup": 0}}}, "spec.securityContext.fsGroup"),
    ({"spec": {"securityContext": {"supplementalGroups": [7, 0]}}}, "spec.securityContext.supplementalGroups"),
    *(
        ({"spec": {"securityContext": {"supplementalGroups": value}}}, "spec.securityContext.supplementalGroups")
        for value in (0, 7, "7", True)
    ),
    ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "spec.securityContext.runAsNonRoot"),
    ({"spec": {"securityContext": {"sysctls": []}}}, "spec.securityContext.sysctls"),
    ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "spec.securityContext.seccompProfile"),
    ({"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}}, "spec.volumes[x].hostPath"),
    ({"spec": {"volumes": [{"name": "x", "nfs": {"server": "s"}}]}}, "spec.volumes[x].nfs"),
    ({"spec": {"volumes": [{"name": "artifacts", "emptyDir": {}}]}}, "spec.volumes[artifacts]"),
    ({"spec": {"volumes": [{"name": "shm", "emptyDir": {}}]}}, "spec.volumes[shm]"),
    (
        {"spec": {"volumes": [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}},
        "spec.volumes[x].projected.sources[0].serviceAccountToken",
    ),
    *(
        (
            {"spec": {"volumes": [{"name": "x", "projected": {"sources": [{kind: {"path": "t"}}]}}]}},
            f"spec.volumes[x].projected.sources[0].{kind}",
        )
        for kind in ("clusterTrustBundle", "podCertificate")
    ),
    ({"spec": {"volumes": [{"emptyDir": {}}]}}, "spec.volumes[0]"),
    ({"spec": {"volumes": {"name": "x"}}}, "spec.volumes"),
    ({"spec": {"volumes": None}}, "spec.volumes"),
    ({"spec": {"$patch": "replace"}}, "spec.$patch"),
    ({"spec": {"containers": [{"name": "log", "$patch": "delete"}]}}, "spec.containers[log].$patch"),
    (engine_with(image="mine:1"), "spec.containers[engine].image"),
    (engine_with(args=[]), "spec.containers[engine].args"),
    (engine_with(command=["sh"]), "spec.containers[engine].command"),
    (engine_with(ports=[{"containerPort": 9}]), "spec.containers[engine].ports"),
    (engine_with(envFrom=[{"configMapRef": {"name": "c"}}]), "spec.containers[engine].envFrom"),
    (engine_with(livenessProbe={}), "spec.containers[engine].livenessProbe"),
    (engine_with(readinessProbe={}), "spec.containers[engine].readinessProbe"),
    (engine_with(startupProbe={}), "spec.containers[engine].startupProbe"),
    (engine_with(lifecycle={}), "spec.containers[engine].lifecycle"),
    (engine_with(resources={}), "spec.containers[engine].resources"),
    (engine_with(securityContext={"privileged": True}), "spec.containers[engine].securityContext"),
    (engine_with(env=[{"name": "HF_HUB_OFFLINE", "value": "0"}]), "spec.containers[engine].env[HF_HUB_OFFLINE]"),
    (engine_with(env=[{"name": "VLLM_API_KEY", "value": "k"}]), "spec.containers[engine].env[VLLM_API_KEY]"),
    (
        engine_with(volumeMounts=[{"name": "cache", "mountPath": "/artifacts/x"}]),
        "spec.containers[engine].volumeMounts[/artifacts/x]",
    ),
    (
        engine_with(volumeMounts=[{"name": "cache", "mountPath": "/x/../tmp"}]),
        "spec.containers[engine].volumeMounts[/x/../tmp]",
    ),
    (
        engine_with(volumeMounts=[{"name": "cache", "mountPath": "/opt/encoder"}]),
        "spec.containers[engine].volumeMounts[/opt/encoder]",
    ),
    (
        engine_with(volumeMounts=[{"name": "cache", "mountPath": "/dev/shm"}]),
        "spec.containers[engine].volumeMounts[/dev/shm]",
    ),
    (
        engine_with(volumeMounts=[{"name": "artifacts", "mountPath": "/w"}]),
        "spec.containers[engine].volumeMounts[/w]",
    ),
    (
        engine_with(volumeMounts=[{"name": "artifacts", "mountPath": "/r", "readOnly": True}]),
        "spec.containers[engine].volumeMounts[/r]",
    ),
    (engine_with(volumeMounts=[{"name": "cache", "mountPath": 7}]), "spec.containers[engine].volumeMounts[7]"),
    (engine_with(volumeMounts=[{"name": [], "mountPath": "/c"}]), "spec.containers[engine].volumeMounts[/c]"),
    *((sidecar(image=image), "spec.containers[log].image") for image in ("https://x/log:1", "Log:1", "a b", "x//y")),
    ({"spec": {"initContainers": [{"name": "engine"}]}}, "spec.initContainers[engine]"),
    (sidecar(ports=[{"containerPort": 8000}]), "spec.containers[log].ports[8000]"),
    (sidecar(ports=[{"containerPort": 9, "hostPort": 9}]), "spec.containers[log].ports[9].hostPort"),
    (
        sidecar(volumeMounts=[{"name": "artifacts", "mountPath": "/a"}]),
        "spec.containers[log].volumeMounts[/a]",
    ),
    (
        sidecar(volumeMounts=[{"name": "shm", "mountPath": "/a", "readOnly": True}]),
        "spec.containers[log].volumeMounts[/a]",
    ),
    (sidecar(securityContext={"privileged": True}), "spec.containers[log].securityContext.privileged"),
    (
        sidecar(securityContext={"allowPrivilegeEscalation": True}),
        "spec.containers[log].securityContext.allowPrivilegeEscalation",
    ),
    (sidecar(securityContext={"runAsUser": 0}), "spec.containers[log].securityContext.runAsUser"),
    (sidecar(securityContext={"runAsGroup": 0}), "spec.containers[log].securityContext.runAsGroup"),
    (sidecar(securityContext={"runAsNonRoot": False}), "spec.containers[log].securityContext.runAsNonRoot"),
    (
        sidecar(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
        "spec.containers[log].securityContext.capabilities.add",
    ),
    (
        sidecar(securityContext={"capabilities": {"drop": []}}),
        "spec.containers[log].securityContext.capabilities.drop",
    ),
    (
        sidecar(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        "spec.containers[log].securityContext.seccompProfile",
    ),
    (sidecar(securityContext={"procMount": "Unmasked"}), "spec.containers[log].securityContext.procMount"),
    (sidecar(securityContext=[]), "spec.containers[log].securityContext"),
    (sidecar(stdin=True), "spec.containers[log].stdin"),
    # what the API server refuses in a pod
    ({"metadata": {"labels": {"team name": "search"}}}, "metadata.labels[team name]"),
    ({"metadata": {"labels": {"a/b/c": "search"}}}, "metadata.labels[a/b/c]"),
    ({"metadata": {"labels": {"Example.com/team": "search"}}}, "metadata.labels[Example.com/team]"),
    ({"metadata": {"labels": {"a" * 64: "search"}}}, f"metadata.labels[{'a' * 64}]"),
    ({"metadata": {"labels": {"team": "search and rank"}}}, "metadata.labels[team]"),
    ({"metadata": {"labels": {"team": "-"}}}, "metadata.labels[team]"),
    ({"metadata": {"labels": {"team": "s" * 64}}}, "metadata.labels[team]"),
    ({"metadata": {"labels": {"team": 7}}}, "metadata.labels[team]"),
    ({"metadata": {"annotations": {"team name": "search"}}}, "metadata.annotations[team name]"),
    ({"metadata": {"annotations": {"prometheus.io/scrape": True}}}, "metadata.annotations[prometheus.io/scrape]"),
    ({"spec": {"containers": [{"name": "a..b", "image": "log:1"}]}}, "spec.containers[a..b]"),
    ({"spec": {"containers": [{"name": 5, "image": "log:1"}]}}, "spec.containers[5]"),
    ({"spec": {"initContainers": [{"name": "Wait", "image": "wait:1"}]}}, "spec.initContainers[Wait]"),
    ({"spec": {"containers": [{"name": "log"}]}}, "spec.containers[log].image"),
    (
        {"spec": {"containers": [{"name": "log", "image": "log:1"}, {"name": "log", "image": "log:2"}]}},
        "spec.containers[log]",
    ),
    (engine_with(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "spec.containers[engine].env[A]"),
    ({"spec": {"volumes": [{"name": "a..b", "emptyDir": {}}]}}, "spec.volumes[a..b]"),
    ({"spec": {"volumes": [{"name": "v" * 64, "emptyDir": {}}]}}, f"spec.volumes[{'v' * 64}]"),
    ({"spec": {"volumes": [{"name": "x"}]}}, "spec.volumes[x]"),
    ({"spec": {"volumes": [{"name": "x", "emptyDir": {}, "secret": {"secretName": "s"}}]}}, "spec.volumes[x]"),
    (
        engine_with(volumeMounts=[{"name": "cache", "mountPath": "/cache"}]),
        "spec.containers[engine].volumeMounts[/cache]",
    ),
    (sidecar(volumeMounts=[{"mountPath": "/cache"}]), "spec.containers[log].volumeMounts[/cache]"),
    *(
        (engine_with(env=[{"name": name, "value": "1"}]), f"spec.containers[engine].env[{name}]")
        for name in ("", "A=B", "Ä", "A\nB")
    ),
    *(
        (
            engine_with(env=[{"name": "A", "valueFrom": {kind: {"name": "c", "key": "k"} | wrong}}]),
            f"spec.containers[engine].env[A].valueFrom.{kind}.{name}",
        )
        for kind, name, wrong in (
            ("configMapKeyRef", "name", {"name": "My_Config"}),
            ("configMapKeyRef", "key", {"key": "a/b"}),
            ("configMapKeyRef", "key", {"key": "..x"}),
            ("secretKeyRef", "name", {"name": ""}),
            ("secretKeyRef", "name", {"name": "n" * 254}),
            ("secretKeyRef", "key", {"key": ""}),
        )
    ),
    *((sidecar(ports=[{"containerPort": port}]), f"spec.containers[log].ports[{port}]") for port in (0, 65536, "web")),
    *(
        (sidecar(ports=[{"containerPort": 9, "name": name}]), "spec.containers[log].ports[9].name")
        for name in ("", "Web", "9", "a--b", "-a", "a" * 16)
    ),
    *(({"spec": {"hostAliases": [{"ip": ip}]}}, f"spec.hostAliases[{ip}]") for ip in ("", "host", "fe80::1%eth0")),
    (
        {"spec": {"hostAliases": [{"ip": "::1", "hostnames": ["ok", "My_Host"]}]}},
        "spec.hostAliases[::1].hostnames",
    ),
]


@pytest.mark.parametrize(("overlaid", "path"), REFUSED, ids=[path for _, path in REFUSED])
def test_what_a_promise_rests_on_is_refused_by_its_path(overlaid: Json, path: str) -> None:
    found = pod_template.find_violation(overlaid, 90)
    assert found is not None
    assert found.path == path
    assert found.why


def test_a_volume_of_the_node_is_refused_for_the_isolation_of_pods() -> None:
    whys = [
        pod_template.find_violation({"spec": {"volumes": [{"name": "x", kind: {}}]}}, 90)
        for kind in ("hostPath", "nfs")
    ]
    assert ["isolation" in found.why for found in whys if found] == [True, False]


ALLOWED = [
    {},
    {"metadata": {"labels": {"team": "search", "containers": "many"}, "annotations": {"prometheus.io/scrape": "true"}}},
    {"metadata": {"labels": {"team": "a" * 63}}},
    {"spec": {"volumes": [{"name": "a" * 63, "emptyDir": {}}]}},
    {"metadata": {"labels": {"example.com/Team_1": ""}, "annotations": {"Example.com/note": "any text\n"}}},
    *(
        {"spec": {"volumes": [{"name": "scratch", **source}]}}
        for source in (
            {"ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"env": "prod", "spec": "a"}}}}},
            {"csi": {"driver": "d", "volumeAttributes": {"ports": "80", "metadata": "none"}}},
        )
    ),
    {"spec": {"terminationGracePeriodSeconds": 600, "hostUsers": False, "dnsPolicy": "Default"}},
    {"spec": {"hostAliases": [{"ip": "192.0.2.7", "hostnames": ["proxy"]}], "securityContext": {"fsGroup": 2000}}},
    engine_with(env=[{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]),
    engine_with(env=[{"name": "PROXY", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "proxy"}}}]),
    engine_with(env=[{"name": "a b.c-1", "valueFrom": {"secretKeyRef": {"name": "c.d", "key": ".a_B-1"}}}]),
    sidecar(ports=[{"containerPort": 65535, "name": "a" * 15}, {"containerPort": 1, "name": "9-a"}]),
    {"spec": {"hostAliases": [{"ip": "2001:db8::1", "hostnames": ["a.b"]}]}},
    sidecar(envFrom=[{"configMapRef": {"name": "c"}}]),
    sidecar(volumeMounts=[{"name": "artifacts", "mountPath": "/artifacts", "readOnly": True}]),
    sidecar(securityContext={"capabilities": {"add": ["NET_BIND_SERVICE"]}, "runAsUser": 7}),
]


@pytest.mark.parametrize("overlaid", ALLOWED)
def test_what_changes_no_promise_is_allowed(overlaid: Json) -> None:
    assert pod_template.find_violation(overlaid, 90) is None


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        *((path, True) for path in ("/", "//", "/x/..", "/artifacts", "/artifacts/k", "/tmp", "/tmp/", "tmp", "/etc")),
        *((path, True) for path in ("/dev", "/dev/shm", "/dev/shm/", "//dev/shm", "/x/../dev/shm", "/dev/shm/x")),
        *((path, True) for path in ("/opt", "/opt/x", "/usr", "/usr/lib", "/bin", "/bin/x", "/lib", "/lib/x")),
        *((path, True) for path in ("/lib64", "/lib64/x", "/proc", "/proc/1", "/sys", "/sys/fs")),
        *((path, False) for path in ("/tmp/cache", "/etc/extra", "/cache", "/devices", "/optional", "/data/opt")),
    ],
)
def test_the_engine_keeps_its_own_paths(path: str, refused: bool) -> None:
    overlaid = engine_with(volumeMounts=[{"name": "cache", "mountPath": path}])
    overlaid["spec"]["volumes"] = [{"name": "cache", "emptyDir": {}}]
    found = pod_template.find_violation(overlaid, 90)
    assert (found and found.path) == (f"spec.containers[engine].volumeMounts[{path}]" if refused else None)
    # other containers have a file system of their own
    other = sidecar(volumeMounts=[{"name": "cache", "mountPath": path}])
    other["spec"]["volumes"] = overlaid["spec"]["volumes"]
    assert pod_template.find_violation(other, 90) is None


@pytest.mark.parametrize("path", [path for path in pod_template.DENIED if "[" not in path])
def test_every_documented_path_of_a_pod_is_refused_with_its_own_reason(path: str) -> None:
    found = pod_template.find_violation({"spec": {path.removeprefix("spec."): {}}}, 90)
    assert found == (path, pod_template.DENIED[path])


@pytest.mark.parametrize("path", [path for path in pod_template.DENIED if "[engine]" in path])
def test_every_documented_path_of_the_engine_is_refused_with_its_own_reason(path: str) -> None:
    name = path.removeprefix("spec.containers[engine].")
    found = pod_template.find_violation(engine_with(**{name: [] if name == "ports" else {}}), 90)
    assert found == (path, pod_template.DENIED[path])


def test_everything_that_the_operator_itself_sets_is_out_of_reach() -> None:
    """Whatever our own template holds is either merged by name beside it, or refused."""
    template = serving_pod_template.build(parsed_model(), "k" * 64, "sha256:d", shared=False, settings=SETTINGS)
    (container,) = template["spec"]["containers"]
    merged_by_name = {"containers", "volumes", "securityContext", "terminationGracePeriodSeconds"}
    for name in set(template["spec"]) - merged_by_name:
        assert pod_template.find_violation({"spec": {name: template["spec"][name]}}, 90) is not None, name
    for name in set(container) - {"name", "env", "volumeMounts"}:
        assert pod_template.find_violation(engine_with(**{name: container[name]}), 90) is not None, name
    for entry in container["env"]:
        assert pod_template.find_violation(engine_with(env=[entry]), 90) is not None, entry
    for mount in container["volumeMounts"]:
        assert pod_template.find_violation(engine_with(volumeMounts=[mount]), 90) is not None, mount
    for volume in template["spec"]["volumes"]:
        assert pod_template.find_violation({"spec": {"volumes": [volume]}}, 90) is not None, volume


NAMES = st.sampled_from(
    ["engine", "side", "artifacts", "cache", "HOME", "A", "/artifacts", "/cache", "ALL", "http", ""]
)
FIELDS = st.sampled_from(
    sorted(
        {"metadata", "labels", "annotations", "spec", "name", "value", "valueFrom", "mountPath", "readOnly", "$patch"}
        | {"hostPath", "emptyDir", "projected", "sources", "serviceAccountToken", "capabilities", "add", "drop"}
        | {"privileged", "runAsUser", "seccompProfile", "type", "containerPort", "hostPort", "image", "args"}
        | {path.split(".")[-1] for path in pod_template.DENIED}
        | {"containers", "initContainers", "env", "envFrom", "volumeMounts", "ports", "volumes", "securityContext"}
        | {"terminationGracePeriodSeconds", "hostAliases", "ip", "hostUsers", "dnsConfig"}
    )
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9000) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
MOUNTS = st.lists(
    st.fixed_dictionaries({"name": NAMES, "mountPath": NAMES}, optional={"readOnly": ANYTHING}), max_size=2
)
ENV = st.lists(st.fixed_dictionaries({"name": NAMES}, optional={"value": ANYTHING}), max_size=2)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": NAMES},
        optional={
            "env": ENV | ANYTHING,
            "volumeMounts": MOUNTS | ANYTHING,
            "securityContext": ANYTHING,
            "ports": ANYTHING,
        },
    ),
    max_size=3,
)
OVERLAYS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.dictionaries(FIELDS, ANYTHING, max_size=2),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": CONTAINERS | ANYTHING,
                "initContainers": CONTAINERS,
                "volumes": st.lists(st.fixed_dictionaries({"name": NAMES}, optional={"emptyDir": ANYTHING})) | ANYTHING,
                "securityContext": ANYTHING,
                "hostAliases": ANYTHING,
            },
        )
        | st.dictionaries(FIELDS, ANYTHING, max_size=2),
    },
) | st.dictionaries(FIELDS, ANYTHING, max_size=3)


@settings(max_examples=200, deadline=None)
@given(OVERLAYS)
def test_any_override_is_rejected_or_harmless(overlaid: Json) -> None:
    if pod_template.find_violation(overlaid, 90) is not None:
        return
    found = pod_template.merge(TEMPLATE, overlaid, CONTEXT)
    before, after = TEMPLATE["spec"], found["spec"]
    own, held = engine(TEMPLATE), engine(found)
    assert {key: held[key] for key in own if key not in ("env", "volumeMounts")} == {
        key: own[key] for key in own if key not in ("env", "volumeMounts")
    }
    assert held["env"][0] == own["env"][0]
    assert held["volumeMounts"][0] == own["volumeMounts"][0]
    assert after["volumes"][0] == before["volumes"][0]
    assert after["securityContext"].items() >= {"runAsNonRoot": True}.items()
    assert after["securityContext"]["runAsUser"] != 0
    assert found["metadata"]["labels"]["encoders.dev/model"] == "m"
    for container in [*after["containers"], *after.get("initContainers", [])]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert "ALL" in context["capabilities"]["drop"]
        assert not context.get("privileged")
