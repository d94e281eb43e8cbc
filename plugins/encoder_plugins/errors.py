"""Every error that this package raises on purpose.

PluginError
├── UnknownPlugin
├── BadArgument                a command-line argument has an impossible value
├── NotServable                this installation cannot serve this artifact
├── EngineEnded                the engine process of offline.Model has ended
├── InvalidRequest             also a ValueError: the client gets 400
│   ├── UnknownModel           404
│   ├── UnknownAdapter         404
│   └── Overloaded             503
├── PrepareError               has a code and an exit status; the operator turns both into a reason
│   ├── AuthFailed             22
│   ├── InsufficientSpace      28
│   ├── RepositoryNotFound     44
│   ├── RevisionNotFound       44
│   ├── SourceFileNotFound     44
│   ├── ChecksumMismatch       65
│   ├── Unsupported            69
│   │   ├── UnsupportedFilesystem
│   │   ├── PickleRefused
│   │   └── RemoteCodeRefused
│   └── Transient              75, worth another try
│       ├── Stalled
│       ├── RateLimited
│       └── DownloadFailed
└── ParityError
├── WrongAnswer            the service gave a wrong answer: the verdict is Failed
└── Unmeasurable           the service gave no answer: the verdict is Inconclusive
"""

# ruff: noqa: N818 - errors are named as the reasons that users read in an EncoderModel's conditions
from __future__ import annotations

from typing import ClassVar


class PluginError(Exception):
    """The root of the tree."""


class UnknownPlugin(PluginError):
    """No plugin has that name."""


class BadArgument(PluginError):
    """A command-line argument has a value that it cannot have."""


class NotServable(PluginError):
    """vLLM is not the supported one, the plugin is disabled, or the accelerator cannot run the artifact."""


class EngineEnded(PluginError):
    """The engine process of ``offline.Model`` ended before it had answered, or did not start."""


MOST_MESSAGE = 2_000
MOST_PARAM = 500


def shortened(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters: from its middle, where a client's own keys and values are, is left out what is more."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 1]}…{text[-end:]}"


class InvalidRequest(PluginError, ValueError):
    """A request that cannot be answered.

    Attributes:
        status: The HTTP status that the client gets.
        message: What was wrong, and what would be accepted; at most 2 000 characters.
        param: The field, as a path from the request's root, e.g. ``data.texts[3]``; at most 500 characters.
    """

    status: ClassVar[int] = 400

    def __init__(self, message: str, *, param: str) -> None:
        # a client's own names can be as long as a body
        self.message = shortened(message, MOST_MESSAGE)
        self.param = shortened(param, MOST_PARAM)
        super().__init__(f"{self.param}: {self.message}")


class UnknownModel(InvalidRequest):
    """A request for a model that this server does not serve."""

    status = 404


class UnknownAdapter(InvalidRequest):
    """A request for an adapter that this server was not started with."""

    status = 404


class Overloaded(InvalidRequest):
    """A request that would be answered later: too many of its kind are in flight."""

    status = 503


class PrepareError(PluginError):
    """Prep, or the check of a prepared artifact, ended without one.

    Attributes:
        code: The reason in one word, as the termination message carries it.
        exit_status: What the process exits with.
    """

    code: ClassVar[str] = "PrepareFailed"
    exit_status: ClassVar[int] = 70


class AuthFailed(PrepareError):
    """The source wants another token, or an accepted licence."""

    code = "AuthFailed"
    exit_status = 22


class InsufficientSpace(PrepareError):
    """The volume has too little room."""

    code = "InsufficientSpace"
    exit_status = 28


class RepositoryNotFound(PrepareError):
    """The source has no such repository, or hides it from this token."""

    code = "RepositoryNotFound"
    exit_status = 44


class RevisionNotFound(PrepareError):
    """The repository has no such revision."""

    code = "RevisionNotFound"
    exit_status = 44


class SourceFileNotFound(PrepareError):
    """A file or folder that the checkpoint needs is not there."""

    code = "FileNotFound"
    exit_status = 44


class ChecksumMismatch(PrepareError):
    """Bytes are not those that were promised."""

    code = "ChecksumMismatch"
    exit_status = 65


class Unsupported(PrepareError):
    """The checkpoint needs something that this plugin does not do."""

    code = "Unsupported"
    exit_status = 69


class UnsupportedFilesystem(Unsupported):
    """The volume has no atomic rename, so that a half-written artifact could be seen."""

    code = "UnsupportedFilesystem"


class PickleRefused(Unsupported):
    """The checkpoint has its weights in pickle files only, and those were not allowed."""

    code = "PickleRefused"


class RemoteCodeRefused(Unsupported):
    """The checkpoint wants to run code of its repository."""

    code = "RemoteCodeRefused"


class Transient(PrepareError):
    """A failure that another try may not meet."""

    code = "Transient"
    exit_status = 75


class Stalled(Transient):
    """No byte came for too long."""

    code = "Stalled"


class RateLimited(Transient):
    """The source limits the rate of requests, for longer than one attempt may take."""

    code = "RateLimited"


class DownloadFailed(Transient):
    """The source, or the way to it, failed."""

    code = "DownloadFailed"


class ParityError(PluginError):
    """A comparison that ended without a pass."""


class WrongAnswer(ParityError):
    """The service answered, and the answer cannot be compared, or differs."""


class Unmeasurable(ParityError):
    """The service gave no answer: unreachable, overloaded, failing, or too slow."""
