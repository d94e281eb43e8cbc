"""The contract of the status: every condition, and every reason that it can give, with what a person does. One table, one page.

``docs/status.md`` is generated from it. A new reason is one line in ``_REASONS`` and one word in ``reasons.Reason``.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from encoder_operator.status.reasons import Reason


class ConditionDoc(NamedTuple):
    """What a condition says."""

    true_when: str
    computed_from: str


class ReasonDoc(NamedTuple):
    """What a reason means to a person."""

    conditions: tuple[str, ...]
    meaning: str
    remedy: str


CONDITIONS = {
    "Accepted": ConditionDoc(
        "the operator understands the spec and may do what it asks", "the spec, and the operator's settings"
    ),
    "ArtifactReady": ConditionDoc(
        "the prepared checkpoint is on the volume, checked, for what the spec says now",
        "the prep Job's last words, then the revision that has pinned them",
    ),
    "Verified": ConditionDoc(
        "the **active** revision equals the original library within the thresholds, on the accelerator that it runs on",
        "the parity Job's last words, kept as a ControllerRevision",
    ),
    "Available": ConditionDoc(
        "at least one pod of the active revision gets traffic. Gateways go by this one",
        "the pods' own `Ready`, which their readiness gate is part of",
    ),
    "UpToDate": ConditionDoc(
        "the active revision is what the spec asks for, and no pod of a former one answers any more",
        "the labels of pods and ControllerRevisions",
    ),
    "Progressing": ConditionDoc(
        "work is in hand. False with reason `Idle` is the good end, any other reason says what it waits for",
        "all of these",
    ),
    "Degraded": ConditionDoc("something needs a person, whether or not it serves meanwhile", "all of these"),
    "UpdateAvailable": ConditionDoc(
        "the operator's images or defaults are newer than those that the revision was made with. Nothing changes by itself:"
        " set the annotation `encoders.dev/update` to a new value to take them",
        "the revision, and the operator's settings",
    ),
    "Ready": ConditionDoc(
        "`Available` and `UpToDate` and, where parity is enforced, `Verified`. Pipelines go by this one. It promises that"
        " `spec.serving.replicas` pods are asked for and that one answers; how many do is `status.readyReplicas`",
        "the others",
    ),
}
# a condition that has nothing of its own to say gives the reason of one of these
_INHERITS_FROM = {
    "UpToDate": ("ArtifactReady",),
    "Progressing": ("ArtifactReady", "Verified"),
    "Degraded": ("ArtifactReady",),
    "Ready": ("Accepted", "ArtifactReady", "Verified", "UpToDate", "Available"),
}

# reason | conditions that give it by themselves | what it means | what to do
_REASONS = """
Accepted | Accepted | the spec is understood | nothing
InvalidSpec | Accepted | a field holds what the operator can't read; the message names it | correct the field. The API server refuses most of these: is the CRD as old as the operator?
UnknownPlugin | Accepted | this operator has no such plugin | upgrade the operator, or correct `spec.plugin` in a new EncoderModel
UnsupportedAccelerator | Accepted | the plugin is not made for this accelerator | choose another, or set `spec.serving.dtype` to serve it anyway
ArgumentDenied | Accepted | `spec.serving.args` holds an argument that is not yours to set | see the list in [encodermodel.md](encodermodel.md); most have a field of their own
EnvironmentDenied | Accepted | an environment variable that the operator sets, or that would load foreign code | leave it out; see the list in [encodermodel.md](encodermodel.md)
PodTemplateDenied | Accepted | `spec.serving.podTemplate` holds what the model's promises rest on; the message names the path and what to use instead | leave it out; see the list in [encodermodel.md](encodermodel.md)
LoadFormatUnsupported | Accepted | the engine image can't read weights in this way | take another `spec.serving.loadFormat`, or bring an image that can (`spec.image`)
RemoteCodeTrusted | Accepted | the spec is understood, and the pods run Python code from the checkpoint's repository | nothing, if that is what you want; pods carry the label `encoders.dev/trust-remote-code`
RemoteCodeDenied | Accepted | `spec.serving.trustRemoteCode` is set, and this operator does not permit it | take a checkpoint without code of its own, or let an administrator set `allowTrustRemoteCode`
OneNodeOnly | Accepted | the volume is ReadWriteOnce, which keeps all pods of the model on one node, and the spec asks to part them | take a ReadWriteMany volume, or prefer instead of require
OnePodOnly | Accepted | the claim is ReadWriteOncePod: one pod alone may mount it, and preparing, comparing and updating need a second one | take a ReadWriteOnce or ReadWriteMany claim
NoImage | Accepted | the operator was installed without an image for this plugin and accelerator | set it in the chart's values
NameConflict | Accepted | a Service, Deployment or claim of this name exists and is not the model's | rename one of them
NotAccepted | all | follows from `Accepted` being False; what served before serves on | see `Accepted`
Prepared | ArtifactReady | the message has the artifact's digest and size | nothing
Preparing | ArtifactReady, UpToDate, Progressing | the prep Job is at work | wait; `kubectl logs job/…-prep` shows how far it is
Queued | ArtifactReady, UpToDate, Progressing, Ready | as many preparations as the chart's `settings.maxPreps` allows are at work for other models | wait; or let the operator run more of them at once
ClaimMissing | ArtifactReady | `spec.storage.claimName` or the source's claim does not exist | make the claim
InputsMissing | ArtifactReady | the ConfigMap or the key that `spec.parity.inputs` names does not exist | make it, or take the field away
ClaimPending | ArtifactReady | the claim is not bound to a volume | `kubectl describe pvc`: is there a StorageClass, is there room?
TokenSecretMissing | ArtifactReady | the Secret or its key is not there | make it; the Job goes on by itself
VolumeNotMounted | ArtifactReady | the kubelet can't mount a volume; the message is its own | look at the volume and its driver
AuthFailed | ArtifactReady | the hub refuses access | give a token (`tokenSecretRef`), or accept the model's terms with the token's account
RepositoryNotFound | ArtifactReady | the hub has no such repository, or does not show it to this token | correct `repo`, or give a token
RevisionNotFound | ArtifactReady | the repository has no such commit | correct `revision`
FileNotFound | ArtifactReady | the checkpoint lacks a file that the plugin needs | is it a checkpoint of this family?
InsufficientSpace | ArtifactReady | the volume is too small; the message says by how much | make room, or raise `spec.storage.create.size` (claims of your own: `kubectl patch pvc`) where the StorageClass lets volumes grow, then set `encoders.dev/retry`
ChecksumMismatch | ArtifactReady | what arrived is not what the hub announced, more than once | a proxy or mirror changes files: look there, then set `encoders.dev/retry`
Unsupported | ArtifactReady | the plugin does not serve this kind of checkpoint; the message says what it found | take another plugin or checkpoint
UnsupportedFilesystem | ArtifactReady | the volume has no atomic rename (object-store mounts) | take a file system: local, NFS 4, CephFS
PickleRefused | ArtifactReady | the weights are in pickle format | take safetensors, or set `spec.prepare.allowPickle`
RemoteCodeRefused | ArtifactReady | the repository wants to run its own code | take a checkpoint that does not
Stalled | ArtifactReady | no byte came for a while; tried again, until the tries are used up | look at the network, then set `encoders.dev/retry`
RateLimited | ArtifactReady | the hub asks for patience; tried again after the time that it names, until the tries are used up | give a token, or use a mirror (`endpoint`)
DownloadFailed | ArtifactReady | network or server errors; tried again, until the tries are used up | look at the network, then set `encoders.dev/retry`
OutOfMemory | ArtifactReady, Available, Progressing, Degraded | the container needed more memory than its limit | raise `spec.prepare.resources` or `spec.serving.resources`
Evicted | ArtifactReady, Available, Progressing | the node needed room, or the pod took more of its disk than its limit; the message is the kubelet's. Tried again | set requests and limits that fit
NodeLost | ArtifactReady | the node of the prep pod does not answer, or is gone; the same Job goes on with another pod when Kubernetes has ended this one | wait. Of a node that stays away, delete the Node object (cloud providers do), or taint it `node.kubernetes.io/out-of-service`
DeadlineExceeded | ArtifactReady | the preparation took longer than `spec.prepare.activeDeadlineSeconds` | raise it; what is downloaded already is kept
PreparationFailed | ArtifactReady | anything else; the message is the Job's last word | `kubectl logs` of the Job's pod
ImagePullFailed | ArtifactReady, Available, Progressing, Degraded | the node can't get the image | look at the image's name in the chart's values, and at pull secrets; it is tried again
Unschedulable | ArtifactReady, Available, Progressing | no node takes the pod; the message is the scheduler's | lower the requests, or add nodes
InsufficientGPU | Available, Progressing, Degraded | no node has a free GPU; an update needs one more than the model has pods | free or add one; it goes on by itself
CrashLoop | Available, Progressing, Degraded | the engine ends again and again; the message is its last word | `kubectl logs --previous` of the pod; correct `spec.serving`
PodsRefused | Available, Progressing, Degraded | the API server refuses the pods (quota, admission); the message is its own | raise the quota, or correct the spec
GatewayApiMissing | Degraded | `spec.network.httpRoute` is set and the cluster has no HTTPRoute resource; everything else works | install the Gateway API, or take the field away; it is looked for again
WriteRefused | Progressing, Degraded | the API server does not let the operator read or write one of the model's objects (permissions, quota, admission); the message is its own. Tried again | correct what it names; `encoder-operator doctor` checks the permissions
Starting | Progressing | pods load the model | wait
ParityPassed | Verified | the message has the numbers | nothing
ParityFailed | Verified, UpToDate, Available, Progressing, Degraded | the engine computes something else than the original library; the message has the numbers and the worst cases. On an update the verified revision serves on | undo what changed (arguments, number format), or if the difference is acceptable raise `spec.parity.thresholds`
ParityRunning | Verified, Progressing | the comparison is at work | wait
ParityPending | Verified | the comparison starts when a pod's engine answers | wait
Inconclusive | Verified, UpToDate, Progressing | the comparison could not be made (unreachable, evicted, timeout); tried again, ever more rarely | if it stays: `kubectl logs` of the parity Job; is `spec.parity.timeoutSeconds` enough?
Disabled | Verified | `spec.parity.mode` is `Disabled` | nothing, or enable it
NotVerified | Verified | there is no revision to verify yet | wait for the artifact
Serving | Available | pods get traffic | nothing
NoReadyPods | Available | no pod of a verified revision is ready | see `Progressing` and `Verified`
ScaledToZero | Available | `spec.serving.replicas` is 0 | `kubectl scale`
Suspended | ArtifactReady, Available, Progressing, Ready | `spec.suspend` is true | set it to false
Paused | ArtifactReady, UpToDate, Progressing | `spec.paused` is true: the operator changes nothing but the gates of pods that may serve | set it to false
Current | UpToDate, UpdateAvailable | it is as asked for | nothing
RolloutInProgress | UpToDate | the wanted revision is not the only one that answers | wait
ProgressDeadlineExceeded | UpToDate, Available, Progressing, Degraded, Ready | a pod of the wanted revision had a node and did not start within `spec.rollout.progressDeadlineSeconds`; the message says what it hung on. Where a verified revision was there, that one serves on | look at the pod's events and `kubectl logs`; correct the spec, raise the deadline, or set `encoders.dev/retry`
WaitingForDeletion | all | children of a deleted EncoderModel of this name are still there | wait for the garbage collector
Idle | Progressing | there is nothing to do | nothing
AsExpected | Degraded | nothing needs a person | nothing
NewDefaults | UpdateAvailable | the message says what is newer | set `encoders.dev/update` when it suits you
Ready | Ready | it answers, verified, as asked for | send requests to `status.endpoint`
"""

_PAGE = """<!-- Generated by `encoder-operator crd`. -->

# What the status says, and what to do about it

`kubectl get em` shows the phase; `kubectl describe em NAME` shows nine conditions. Each carries the `observedGeneration` that it
speaks of, so nothing here is ever stale: a pipeline waits with `kubectl wait --for=condition=Ready em/NAME`.
Each node learns of a pod's readiness a moment after the API server: who posts at once tries again when the connection is refused.

The operator is the only one that writes them, and it works all of them out from what is in the cluster. Deleting the status
changes nothing; it comes back.

## Conditions

| condition | True means | worked out from |
|---|---|---|
{conditions}

`phase` is one word for people, derived from the above: `Pending`, `Preparing`, `Verifying`, `RollingOut`, `Serving`, `Degraded`
(serves, and needs a person), `Failed` (does not serve, and needs a person), `Suspended` (so it is meant: `spec.suspend`, or no replicas).

## Reasons

"Tried again" means by the operator, without you. Everything else waits for another spec, or for a new value of the annotation
`encoders.dev/retry`. Taking that annotation, or `encoders.dev/update`, away asks for nothing.

{follows}

| reason | on | what it means | what to do |
|---|---|---|---|
{reasons}

## Events

What changed for the better or worse is also an Event on the EncoderModel, once: `Prepared`, `ParityPassed`, `Ready`, and as
warnings every reason above that waits for a person.
"""


@functools.cache
def reason_docs() -> dict[Reason, ReasonDoc]:
    """Return what each reason means, in the page's order."""
    found = {}
    for line in _REASONS.strip().splitlines():
        word, conditions, meaning, remedy = line.split(" | ")
        found[Reason(word)] = ReasonDoc(_split_conditions(conditions), meaning, remedy)
    return found


def may_have_reason(condition: str, reason: Reason) -> bool:
    """Return whether the page says that ``condition`` may give ``reason``."""
    return bool({condition, *_INHERITS_FROM.get(condition, ())} & set(reason_docs()[reason].conditions))


def page() -> str:
    """Return the page, as Markdown."""
    conditions = [f"| `{name}` | {said.true_when} | {said.computed_from} |" for name, said in CONDITIONS.items()]
    reasons = [
        f"| `{reason}` | {', '.join(entry.conditions)} | {entry.meaning} | {entry.remedy} |"
        for reason, entry in reason_docs().items()
    ]
    follows = [
        f"`{name}` may give any reason of {', '.join(f'`{of}`' for of in before)}."
        for name, before in _INHERITS_FROM.items()
    ]
    return _PAGE.format(conditions="\n".join(conditions), reasons="\n".join(reasons), follows="\n".join(follows))


def _split_conditions(text: str) -> tuple[str, ...]:
    return tuple(CONDITIONS) if text == "all" else tuple(text.split(", "))
