"""Documentation of every condition and reason, with what the user can do about it.

`docs/status.md` is generated from this module. A new reason needs a row in `_REASONS` and a member of `reasons.Reason`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from encoder_operator.status.reasons import EventReason, Reason


class ConditionDoc(NamedTuple):
    """What a condition means."""

    true_when: str
    computed_from: str


class ReasonDoc(NamedTuple):
    """What a reason means, and what the user can do about it."""

    conditions: tuple[str, ...]
    meaning: str
    remedy: str


CONDITIONS = {
    "Accepted": ConditionDoc(
        "The spec is valid and allowed by the operator's settings", "the spec, and the operator's settings"
    ),
    "ArtifactReady": ConditionDoc(
        "The artifact of the current spec is on the volume, and its checksums have been verified",
        "the prep Job's termination message, later the revision that pins the artifact",
    ),
    "Verified": ConditionDoc(
        "The output of the **active** revision matches the reference outputs within tolerance on the accelerator that it runs on. Unknown"
        " before anything was compared",
        "the parity Job's termination message, recorded as a ControllerRevision",
    ),
    "Available": ConditionDoc(
        "At least one pod of the active revision receives traffic. Use this condition for gateways",
        "the `Ready` conditions of the pods, which include the readiness gate",
    ),
    "UpToDate": ConditionDoc(
        "The active revision matches the current spec, and no pod of a previous revision serves traffic",
        "the labels of pods and ControllerRevisions",
    ),
    "Progressing": ConditionDoc(
        "The operator, a Job or a pod is working towards the spec. If False with another reason than `Idle`, the reason says what it waits for",
        "all of the above",
    ),
    "Degraded": ConditionDoc(
        "There is a problem that needs the user's attention, whether or not the model serves traffic",
        "all of the above",
    ),
    "UpdateAvailable": ConditionDoc(
        "The operator has newer images or defaults than the revision. Pods do not change until the user sets the annotation"
        " `encoders.dev/update` to a new value",
        "the revision, and the operator's settings",
    ),
    "Ready": ConditionDoc(
        "`Available` and `UpToDate` and, if parity is enforced, `Verified`. Use this condition for pipelines. It means that the Deployment"
        " has `spec.serving.replicas` replicas and at least one is ready; `status.readyReplicas` has the number of ready pods",
        "the other conditions",
    ),
}
# these conditions may show the reason of another condition instead of one of their own
_INHERITS_FROM = {
    "UpToDate": ("ArtifactReady",),
    "Progressing": ("ArtifactReady", "Verified"),
    "Degraded": ("ArtifactReady",),
    "Ready": ("Accepted", "ArtifactReady", "Verified", "UpToDate", "Available"),
}

# reason | conditions that set it themselves | meaning | remedy
_REASONS = """
Accepted | Accepted | The spec is valid | None
InvalidSpec | Accepted | A field has an invalid value; the message names the field | Correct the field. The API server normally rejects such values: check that the CRD has the version of the operator
UnknownPlugin | Accepted | The operator does not have this plugin | Upgrade the operator, or set the correct `spec.plugin` in a new EncoderModel
UnsupportedAccelerator | Accepted | The plugin has no default dtype for this accelerator | Choose another accelerator, or set `spec.serving.dtype` to use this one anyway
ArgumentDenied | Accepted | `spec.serving.args` contains a reserved argument | Remove it; [encodermodel.md](encodermodel.md) lists the reserved arguments and the fields to use instead
EnvironmentDenied | Accepted | An environment variable is reserved for the operator, or loads code from elsewhere | Remove it; [encodermodel.md](encodermodel.md) lists the reserved variables
PodTemplateDenied | Accepted | `spec.serving.podTemplate` sets a field that the operator depends on; the message names the path and an alternative | Remove it; [encodermodel.md](encodermodel.md) lists the fields that can be set
LoadFormatUnsupported | Accepted | The engine image does not support this load format | Choose another `spec.serving.loadFormat`, or set `spec.image` to an image that supports it
RemoteCodeTrusted | Accepted | The spec is valid, and the pods run Python code from the checkpoint's repository | None if this is intended; the pods have the label `encoders.dev/trust-remote-code`
RemoteCodeDenied | Accepted | `trustRemoteCode` of `spec.serving` or `spec.prepare` is set, but the operator does not allow it | Use a checkpoint without its own code, or ask an administrator to set `allowTrustRemoteCode`
NotPermitted | Accepted | The administrator does not allow a field or value; the message names it and the setting | Remove the field, or ask an administrator to change the setting in `tenancy` of the chart's values
OneNodeOnly | Accepted | The volume is ReadWriteOnce, which keeps all pods of the model on one node, but the spec requires them to be separated | Use a ReadWriteMany volume, or preferred instead of required terms
OnePodOnly | Accepted | The PersistentVolumeClaim is ReadWriteOncePod, so only one pod can mount it; preparation, parity checks and updates need a second pod | Use a ReadWriteOnce or ReadWriteMany claim
NoImage | Accepted | The operator has no image for this plugin and accelerator | Set the image in the chart's values
NameConflict | Accepted | A Service, Deployment or PersistentVolumeClaim of this name exists and does not belong to the EncoderModel | Rename one of them
NotAccepted | all | `Accepted` is False; a revision that serves traffic keeps serving | See `Accepted`
Prepared | ArtifactReady | The artifact is ready; the message has its digest and size | None
Preparing | ArtifactReady, UpToDate, Progressing | The prep Job is in progress | Wait; `kubectl logs job/…-prep` shows the progress
Queued | ArtifactReady, UpToDate, Progressing, Ready | The number of prep Jobs has reached the chart's `settings.maxPreps`, or `settings.maxPrepsPerNamespace` in the model's namespace. Free slots go to the namespaces in turn. Or a queue such as Kueue's has not admitted the prep Job, which is suspended | Wait, or increase these settings or the queue's quota
ClaimMissing | ArtifactReady, Available, Progressing, Degraded | The PersistentVolumeClaim in `spec.storage.claimName`, in the source or in a volume of the pod template does not exist | Create the claim
InputsMissing | ArtifactReady | The ConfigMap or key in `spec.parity.inputs` does not exist | Create it, or remove the field
LabelSetMissing | ArtifactReady | The ConfigMap or key of a label set in `spec.labelSets` does not exist; the message names set, ConfigMap and key | Create it; preparation continues automatically. A model whose artifact is prepared does not need it any more
ClaimPending | ArtifactReady, Available, Progressing | The PersistentVolumeClaim is not bound to a volume | Check the StorageClass and the available capacity with `kubectl describe pvc`
TokenSecretMissing | ArtifactReady, Available, Progressing, Degraded | A Secret that a pod needs, or its key, does not exist | Create it; the pod continues automatically
VolumeNotMounted | ArtifactReady, Available, Progressing, Degraded | The kubelet cannot mount a volume, for instance because it is attached to another node or its ConfigMap does not exist; the message is from the kubelet | Check the volume and its driver, or create the ConfigMap; the pod continues automatically
AuthFailed | ArtifactReady | The hub denied access | Set a token (`tokenSecretRef`), or accept the model's terms with the token's account
RepositoryNotFound | ArtifactReady | The repository does not exist, or the token has no access to it | Correct `repo`, or set a token
RevisionNotFound | ArtifactReady | The commit does not exist in the repository | Correct `revision`
FileNotFound | ArtifactReady | The checkpoint lacks a file that the plugin needs | Check that the checkpoint belongs to this encoder family
InsufficientSpace | ArtifactReady | The volume is too small; the message has the missing amount | Free space, or expand the volume (`spec.storage.create.size`, or `kubectl patch pvc` for your own claims), then set `encoders.dev/retry`
ChecksumMismatch | ArtifactReady | Downloaded files repeatedly do not match the checksums of the hub | Check for a proxy or mirror that changes files, then set `encoders.dev/retry`
Unsupported | ArtifactReady | The plugin does not support this kind of checkpoint; the message has the details | Use another plugin or checkpoint
UnsupportedFilesystem | ArtifactReady | The volume does not support atomic renames, like most object-store mounts | Use a file system with atomic renames, such as local storage, NFS 4 or CephFS
PickleRefused | ArtifactReady | The weights are in pickle format | Use safetensors, or set `spec.prepare.allowPickle`
RemoteCodeRefused | ArtifactReady | The checkpoint needs its own code | Use a checkpoint without its own code
Stalled | ArtifactReady | The download stalled; the operator retries until `spec.prepare.backoffLimit` | Check the network, then set `encoders.dev/retry`
RateLimited | ArtifactReady | Rate limited by the hub; the operator retries after Retry-After, until `spec.prepare.backoffLimit` | Set a token, or use a mirror (`endpoint`)
DownloadFailed | ArtifactReady | Network or server errors; the operator retries until `spec.prepare.backoffLimit` | Check the network, then set `encoders.dev/retry`
OutOfMemory | ArtifactReady, Available, Progressing, Degraded | A container exceeded its memory limit | Increase `spec.prepare.resources` or `spec.serving.resources`
Evicted | ArtifactReady, Available, Progressing | The node was short of resources, or the pod exceeded its ephemeral storage limit; the message is from the kubelet. The operator retries | Set requests and limits that match the usage
NodeLost | ArtifactReady | The node of the prep pod is not responding or is gone; the Job continues with another pod after Kubernetes has evicted this one | Wait. If the node does not come back, delete the Node object, as cloud providers do, or taint it with `node.kubernetes.io/out-of-service`
DeadlineExceeded | ArtifactReady | The preparation exceeded `spec.prepare.activeDeadlineSeconds` | Increase the deadline; downloaded files are kept
PreparationFailed | ArtifactReady | The preparation failed for another reason; the message is from the Job | Check `kubectl logs` of the Job's pod
ImagePullFailed | ArtifactReady, Available, Progressing, Degraded | The node cannot pull the image | Check the image in the chart's values and the pull secrets; the kubelet retries
Unschedulable | ArtifactReady, Available, Progressing | No node can run the pod; the message is from the scheduler | Lower the requests, or add nodes
InsufficientGPU | Available, Progressing, Degraded | No node has a free GPU; a rolling update needs one more than the model has pods | Free or add a GPU; the rollout continues automatically
CrashLoop | ArtifactReady, Available, Progressing, Degraded | The engine, or a container that `spec.serving.podTemplate` adds, exits repeatedly, or the node cannot create it, for instance because it lacks the runtime of `spec.serving.runtimeClassName`; the message names a container that is not the engine | Check `kubectl logs --previous` of the pod and correct `spec.serving`
PodsRefused | ArtifactReady, Available, Progressing, Degraded | The API server rejects the pods (quota, admission); the message is from the API server | Increase the quota, or correct the spec
GatewayApiMissing | Degraded | `spec.network.httpRoute` is set, but the cluster does not serve HTTPRoutes; everything else works | Install the Gateway API, or remove the field; the operator checks again periodically
ForeignField | Degraded | Another client has set fields of the Deployment that the operator does not set, so the pods may not be what was verified; the message lists the fields | Remove the fields, for instance with `kubectl edit`, and set them in the EncoderModel
WriteRefused | ArtifactReady, UpToDate, Progressing, Degraded, Ready | The API server rejects a read or write of one of the model's objects (permissions, quota, admission); the message is from the API server. The operator retries | Correct what the message names; `encoder-operator doctor` checks the permissions
Starting | Progressing | Pods are starting | Wait
ParityPassed | Verified | The parity check passed; the message has the numbers | None
ParityFailed | Verified, UpToDate, Available, Progressing, Degraded | The output differs from the reference outputs beyond the thresholds, or answers cannot be compared, for instance because requests were rejected; the message has the numbers and the worst cases, or the first rejected one. During an update the verified revision keeps serving | Revert the change (arguments, dtype), or adjust `spec.parity.thresholds` if the difference is acceptable
ParityRunning | Verified, Progressing | The parity check is in progress | Wait
ParityPending | Verified | The parity check starts when the engine of a pod is ready | Wait
Inconclusive | Verified, UpToDate, Progressing | The parity check could not be completed (pod unreachable, eviction, timeout), or `spec.serving.limits` are so low that too few of its cases can be sent; the message has the reason, and the operator retries with backoff | If it persists, check `kubectl logs` of the parity Job and `spec.parity.timeoutSeconds`; raise the limits if the message names them
Disabled | Verified | `spec.parity.mode` is `Disabled` | None, or enable parity checks
NotVerified | Verified | There is no revision to verify yet | Wait for the artifact
Serving | Available | Pods receive traffic | None
NoReadyPods | Available | No pod of a verified revision is ready | See `Progressing` and `Verified`
ScaledToZero | Available, Progressing | `spec.serving.replicas` is 0 | Scale up with `kubectl scale`
Suspended | ArtifactReady, Available, Progressing, Ready | `spec.suspend` is true | Set `spec.suspend` to false
Paused | ArtifactReady, UpToDate, Progressing | `spec.paused` is true: the operator changes only the gates of pods that may serve. `UpToDate` is False if other objects differ from the spec; the message lists them | Set `spec.paused` to false
Current | UpToDate, UpdateAvailable | The revision matches the spec and the operator's defaults | None
RolloutInProgress | UpToDate | The target revision does not serve all traffic yet | Wait
ProgressDeadlineExceeded | UpToDate, Available, Progressing, Degraded, Ready | A scheduled pod of the target revision did not start within `spec.rollout.progressDeadlineSeconds`; the message has the cause. A previous verified revision keeps serving | Check the pod's events and `kubectl logs`; correct the spec, increase the deadline, or set `encoders.dev/retry`
WaitingForDeletion | all | Children of a deleted EncoderModel of the same name still exist; or the EncoderModel itself is being deleted, and a finalizer or a foreground deletion keeps it | Wait for the garbage collector, or for the owner of the finalizer
Idle | Progressing | All resources are up to date | None
AsExpected | Degraded | No problems detected | None
NewDefaults | UpdateAvailable | The operator has newer images or defaults; the message lists them | Set `encoders.dev/update` to a new value to use them
Ready | Ready | The model serves traffic with a revision that matches the spec | Send requests to `status.endpoint`
"""

_PAGE = """<!-- Generated by `encoder-operator crd`. -->

# Status

`kubectl get em` shows the phase, the ready and desired pods, and the reason of `Ready`; `-o wide` adds the revisions, the endpoint and the
message of `Ready`. `kubectl describe em NAME` shows nine conditions. A message stands in the condition that it is about, and in `Ready`;
the others name that condition. `status.prepJob` and `status.parityJob` are the Jobs for `kubectl logs job/…`. Each condition has the `observedGeneration` that it is based
on, so a pipeline can wait with `kubectl wait --for=condition=Ready em/NAME`. Nodes learn about a pod's readiness slightly later than
the API server: a client that sends its first request immediately should retry if the connection is refused.

Only the operator writes the conditions. It computes all of them from the state of the cluster, so they come back after the status has
been deleted.

## Conditions

| condition | True means | computed from |
|---|---|---|
{conditions}

`phase` summarizes the conditions: `Pending`, `Preparing`, `Verifying`, `RollingOut`, `Serving`, `Degraded` (serves traffic, but has a
problem), `Failed` (does not serve traffic because of a problem), or `Suspended` (`spec.suspend` is true, or there are no replicas). A paused
model that serves traffic is `Serving`, although its `Ready` condition has the reason `Paused` while an object differs from the spec.

## Reasons

If the table does not mention a retry, the operator tries again after a change of the spec or a new value of the annotation
`encoders.dev/retry`. Removing that annotation, or `encoders.dev/update`, has no effect.

{follows}

| reason | conditions | meaning | remedy |
|---|---|---|---|
{reasons}

## Events

The operator posts these Events on the EncoderModel, and a warning for each reason above that needs the user's attention. `ClaimPending`,
`Evicted` and `Unschedulable` are not posted: a provisioner, a retry or an autoscaler may end them. `kubectl events --for encodermodel/NAME`
lists the Events.

| Event | posted when |
|---|---|
{events}

## Log

The operator writes one JSON line per transition of a condition: `event` is `condition`, `namespace` and `name` are the EncoderModel's, and
`type`, `status`, `reason`, `message` and `generation` are those of the condition.
"""

_EVENTS = {
    EventReason.PREP_STARTED: "a prep Job was created; the message has its name",
    Reason.PREPARED: "the artifact is ready; the message has its digest and size",
    EventReason.ROLLOUT_STARTED: "pods of a new revision start; the message has the revisions and the number of pods",
    EventReason.PARITY_STARTED: "a parity Job was created; the message has its name",
    Reason.PARITY_PASSED: "a revision passed on an accelerator; the message has the measured values and the thresholds",
    Reason.PARITY_FAILED: "a revision failed (warning); the message has the numbers and the worst cases",
    EventReason.ROLLED_BACK: "a new revision was given up, and the previous one serves (warning)",
    Reason.SCALED_TO_ZERO: "`spec.serving.replicas` became 0",
    EventReason.DEGRADED: "`Degraded` became True (warning); the message has the reason and the number of ready pods",
    Reason.READY: "`Ready` became True",
}


@functools.cache
def reason_docs() -> dict[Reason, ReasonDoc]:
    """Return the documentation of each reason in the order of the page."""
    found = {}
    for line in _REASONS.strip().splitlines():
        word, conditions, meaning, remedy = line.split(" | ")
        found[Reason(word)] = ReasonDoc(_split_conditions(conditions), meaning, remedy)
    return found


def may_have_reason(condition: str, reason: Reason) -> bool:
    """Return whether `condition` may have `reason` according to the page."""
    return bool({condition, *_INHERITS_FROM.get(condition, ())} & set(reason_docs()[reason].conditions))


def page() -> str:
    """Return the page as Markdown."""
    conditions = [f"| `{name}` | {doc.true_when} | {doc.computed_from} |" for name, doc in CONDITIONS.items()]
    reasons = [
        f"| `{reason}` | {', '.join(entry.conditions)} | {entry.meaning} | {entry.remedy} |"
        for reason, entry in reason_docs().items()
    ]
    follows = [
        f"`{name}` may also have the reason of {', '.join(f'`{of}`' for of in others)}."
        for name, others in _INHERITS_FROM.items()
    ]
    events = [f"| `{reason}` | {when} |" for reason, when in _EVENTS.items()]
    parts = {"conditions": conditions, "reasons": reasons, "follows": follows, "events": events}
    return _PAGE.format(**{name: "\n".join(lines) for name, lines in parts.items()})


def _split_conditions(text: str) -> tuple[str, ...]:
    return tuple(CONDITIONS) if text == "all" else tuple(text.split(", "))
