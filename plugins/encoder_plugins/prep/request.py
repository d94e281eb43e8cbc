"""What a prep Job prepares, and from where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from encoder_plugins.artifact.cases import Inputs
from encoder_plugins.parameters import Value
from encoder_plugins.plugin import Plugin


@dataclass(frozen=True, slots=True)
class Credentials:
    """The identity for an object store.

    Attributes:
        access_key: The key's public half.
        secret_key: Its other half.
        session_token: What temporary keys have beside.
    """

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Auxiliary:
    """A further repository that a checkpoint needs: GLiNER's oldest leave their encoder's configuration there.

    Attributes:
        source: `org/name` on the same hub, or an absolute folder.
        revision: A commit; None for a folder only.
    """

    source: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class LabelSetSource:
    """Where a label set comes from.

    Attributes:
        name: What requests call it.
        source: `hf://[datasets/]org/name@commit/path`, `s3://bucket/key`, an http(s) address, or a file.
        sha256: The checksum that it must have.
    """

    name: str
    source: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to prepare.

    Attributes:
        plugin: Whose checkpoint it is.
        source: `org/name` on a hub, `s3://bucket/prefix`, an http(s) address, or an absolute folder.
        output: The artifact's folder; its name is the artifact's key.
        revision: A commit of the hub's repository, the sha256 of what the address leads to, or the folder's digest;
            None takes what there is and records it.
        allow_mutable_revision: Take a branch or a tag for the commit that it names at the moment, and record that.
        endpoint: The hub's, or the object store's, address; None for the public one.
        region: The object store's.
        token: Sent to the hub and nowhere else.
        credentials: Sign the requests to the object store; they are not sent.
        ambient_credentials: Without ``credentials``, sign with those that the object store's client finds in its
            environment: a workload identity, or an instance's role.
        allow_pickle: Convert pickled weights where there are no others.
        trust_remote_code: Take the repository's Python code, and let the original library run it.
        auxiliary: Further repositories; only their configuration and tokenizer are taken.
        inputs: The user's own cases, recorded beside the built-in ones.
        label_sets: Sets of labels that requests may name, sorted by name.
        parameters: The plugin's own parameters, as ``encoder_plugins.parameters.check`` returns them.
        stall_seconds: Without a byte for so long, the attempt ends.
    """

    plugin: Plugin
    source: str
    output: Path
    revision: str | None = None
    allow_mutable_revision: bool = False
    endpoint: str | None = None
    region: str | None = None
    token: str | None = field(default=None, repr=False)
    credentials: Credentials | None = field(default=None, repr=False)
    ambient_credentials: bool = False
    allow_pickle: bool = False
    trust_remote_code: bool = False
    auxiliary: tuple[Auxiliary, ...] = ()
    inputs: Inputs = ()
    label_sets: tuple[LabelSetSource, ...] = ()
    parameters: Mapping[str, Value] = field(default_factory=dict)
    stall_seconds: float = 120.0
