"""The software bill of materials of an image, in SPDX 2.3, from the layers themselves.

Listed are Debian's packages (dpkg's database) and Python distributions (their metadata), which is all that our Dockerfiles install. Nothing is
run: what is listed is what an engine or an operator finds on its file system.
"""

from __future__ import annotations

import email.parser
import re
import tarfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from encoder_node import layouts

MEDIA_TYPE = "application/spdx+json"
DPKG = "var/lib/dpkg/status"
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA$")
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """One installed package.

    Attributes:
        kind: `deb` or `pypi`, the type of its package URL.
        name: Its name; a Python distribution's in its normalized form.
        version: Its version.
        architecture: A Debian package's architecture, else empty.
        license: An SPDX expression, empty if the package does not declare one.
        place: Folder that it is installed in; several environments of an image may have the same distribution.
    """

    kind: str
    name: str
    version: str
    architecture: str = ""
    license: str = ""
    place: str = ""

    @property
    def url(self) -> str:
        """Its package URL."""
        if self.kind == "deb":
            return f"pkg:deb/debian/{quote(self.name)}@{quote(self.version)}?arch={quote(self.architecture)}"
        return f"pkg:pypi/{quote(self.name)}@{quote(self.version)}"


def packages(files: Mapping[str, bytes]) -> list[Package]:
    """Return the packages that databases and metadata files describe, sorted.

    Args:
        files: Contents by path, as `package_files` finds them.
    """
    found: set[Package] = set()
    for path, data in files.items():
        text = data.decode(errors="replace")
        if path == DPKG:
            found.update(_debian(text))
        else:
            fields = email.parser.HeaderParser().parsestr(text)
            name, version = fields.get("Name"), fields.get("Version")
            if name and version:
                normalized = re.sub(r"[-_.]+", "-", name).lower()
                place = str(PurePosixPath(path).parent.parent)
                licence = str(fields.get("License-Expression", "")).strip()
                found.add(Package("pypi", normalized, str(version).strip(), license=licence, place=place))
    return sorted(found)


def _debian(status: str) -> Iterable[Package]:
    for entry in status.split("\n\n"):
        fields = email.parser.HeaderParser().parsestr(entry)
        # removed packages whose configuration stays have an entry too
        if fields.get("Package") and str(fields.get("Status", "")).endswith(" installed"):
            yield Package("deb", str(fields["Package"]), str(fields["Version"]), str(fields.get("Architecture", "all")))


def package_files(layers: Iterable[Path]) -> dict[str, bytes]:
    """Return the files of an image that describe packages, by their path without a leading slash.

    Args:
        layers: Archives, the lowest first; compressed or not.
    """
    found: dict[str, bytes] = {}
    for layer in layers:
        here: dict[str, bytes] = {}
        with tarfile.open(layer, "r|*") as archive:
            for member in archive:
                path = member.name.removeprefix("./").lstrip("/")
                folder, _, name = path.rpartition("/")
                if name == _OPAQUE:
                    _remove(found, folder)
                elif name.startswith(_WHITEOUT):
                    _remove(found, f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
                elif member.isfile() and (path == DPKG or _METADATA.search(path)):
                    source = archive.extractfile(member)
                    here[path] = source.read() if source else b""
        found.update(here)
    return found


def _remove(files: dict[str, bytes], path: str) -> None:
    for name in [name for name in files if name == path or name.startswith(f"{path}/")]:
        del files[name]


def document(repository: str, digest: str, version: str, found: Iterable[Package], created: str) -> dict[str, Any]:
    """Return an SPDX 2.3 document for an image.

    Args:
        repository: The image's name without a tag.
        digest: Digest of its manifest.
        version: The release.
        found: What is installed in it.
        created: Time of the commit, in UTC (`YYYY-MM-DDThh:mm:ssZ`): the same commit and image give the same document.
    """
    name = repository.rpartition("/")[2]
    image = {
        "SPDXID": "SPDXRef-Image",
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "primaryPackagePurpose": "CONTAINER",
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION",
        "checksums": [{"algorithm": "SHA256", "checksumValue": digest.removeprefix("sha256:")}],
        "externalRefs": [_reference(f"pkg:oci/{name}@{quote(digest, safe='')}")],
    }
    rest = [
        {
            "SPDXID": f"SPDXRef-Package-{number}",
            "name": package.name,
            "versionInfo": package.version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": package.license or "NOASSERTION",
            "copyrightText": "NOASSERTION",
            **({"comment": f"installed in /{package.place}"} if package.place else {}),
            "externalRefs": [_reference(package.url)],
        }
        for number, package in enumerate(sorted(found))
    ]
    described = {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES"}
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}",
        "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{repository}@{digest}')}",
        "creationInfo": {"created": created, "creators": [f"Tool: encoder_release-{version}"]},
        "packages": [image, *rest],
        "relationships": [
            {**described, "relatedSpdxElement": image["SPDXID"]},
            *(
                {
                    "spdxElementId": image["SPDXID"],
                    "relationshipType": "CONTAINS",
                    "relatedSpdxElement": package["SPDXID"],
                }
                for package in rest
            ),
        ],
    }


def _reference(url: str) -> dict[str, str]:
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}


def of_image(layout: Path, digest: str) -> list[Package]:
    """Return the packages of an image in an OCI layout."""
    image = layouts.read_image(layout, digest)
    return packages(package_files(layouts.blob_path(layout, layer.digest) for layer in image.layers))
