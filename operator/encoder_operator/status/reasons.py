"""Reasons of the conditions of an EncoderModel.

`status.conditions` documents each reason and what the user can do about it.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Values of `conditions[].reason`."""

    # accepted
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_PLUGIN = "UnknownPlugin"
    UNSUPPORTED_ACCELERATOR = "UnsupportedAccelerator"
    ARGUMENT_DENIED = "ArgumentDenied"
    ENVIRONMENT_DENIED = "EnvironmentDenied"
    POD_TEMPLATE_DENIED = "PodTemplateDenied"
    LOAD_FORMAT_UNSUPPORTED = "LoadFormatUnsupported"
    REMOTE_CODE_TRUSTED = "RemoteCodeTrusted"
    REMOTE_CODE_DENIED = "RemoteCodeDenied"
    NOT_PERMITTED = "NotPermitted"
    ONE_NODE_ONLY = "OneNodeOnly"
    ONE_POD_ONLY = "OnePodOnly"
    NO_IMAGE = "NoImage"
    NAME_CONFLICT = "NameConflict"
    NOT_ACCEPTED = "NotAccepted"

    # artifact
    PREPARED = "Prepared"
    PREPARING = "Preparing"
    QUEUED = "Queued"
    CLAIM_MISSING = "ClaimMissing"
    CLAIM_PENDING = "ClaimPending"
    INPUTS_MISSING = "InputsMissing"
    LABEL_SET_MISSING = "LabelSetMissing"
    TOKEN_SECRET_MISSING = "TokenSecretMissing"
    VOLUME_NOT_MOUNTED = "VolumeNotMounted"
    AUTH_FAILED = "AuthFailed"
    REPOSITORY_NOT_FOUND = "RepositoryNotFound"
    REVISION_NOT_FOUND = "RevisionNotFound"
    FILE_NOT_FOUND = "FileNotFound"
    INSUFFICIENT_SPACE = "InsufficientSpace"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    UNSUPPORTED = "Unsupported"
    UNSUPPORTED_FILESYSTEM = "UnsupportedFilesystem"
    PICKLE_REFUSED = "PickleRefused"
    REMOTE_CODE_REFUSED = "RemoteCodeRefused"
    STALLED = "Stalled"
    RATE_LIMITED = "RateLimited"
    DOWNLOAD_FAILED = "DownloadFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    PREPARATION_FAILED = "PreparationFailed"

    # pods
    IMAGE_PULL_FAILED = "ImagePullFailed"
    UNSCHEDULABLE = "Unschedulable"
    INSUFFICIENT_GPU = "InsufficientGPU"
    CRASH_LOOP = "CrashLoop"
    PODS_REFUSED = "PodsRefused"
    WRITE_REFUSED = "WriteRefused"
    STARTING = "Starting"

    # verification
    PARITY_PASSED = "ParityPassed"
    PARITY_FAILED = "ParityFailed"
    PARITY_RUNNING = "ParityRunning"
    PARITY_PENDING = "ParityPending"
    INCONCLUSIVE = "Inconclusive"
    DISABLED = "Disabled"
    NOT_VERIFIED = "NotVerified"

    # service and rollout
    SERVING = "Serving"
    NO_READY_PODS = "NoReadyPods"
    SCALED_TO_ZERO = "ScaledToZero"
    SUSPENDED = "Suspended"
    PAUSED = "Paused"
    CURRENT = "Current"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    GATEWAY_API_MISSING = "GatewayApiMissing"
    FOREIGN_FIELD = "ForeignField"
    WAITING_FOR_DELETION = "WaitingForDeletion"
    IDLE = "Idle"
    AS_EXPECTED = "AsExpected"
    NEW_DEFAULTS = "NewDefaults"
    READY = "Ready"


PREP_ERRORS = frozenset(
    {
        Reason.AUTH_FAILED,
        Reason.REPOSITORY_NOT_FOUND,
        Reason.REVISION_NOT_FOUND,
        Reason.FILE_NOT_FOUND,
        Reason.INSUFFICIENT_SPACE,
        Reason.CHECKSUM_MISMATCH,
        Reason.UNSUPPORTED,
        Reason.UNSUPPORTED_FILESYSTEM,
        Reason.PICKLE_REFUSED,
        Reason.REMOTE_CODE_REFUSED,
        Reason.STALLED,
        Reason.RATE_LIMITED,
        Reason.DOWNLOAD_FAILED,
    }
)
"""The reasons that are error codes in the report of `encoder-plugins prepare`."""


class EventReason(StrEnum):
    """Reasons of Events that are no reason of a condition."""

    PREP_STARTED = "PrepStarted"
    ROLLOUT_STARTED = "RolloutStarted"
    PARITY_STARTED = "ParityStarted"
    ROLLED_BACK = "RolledBack"
    DEGRADED = "Degraded"
