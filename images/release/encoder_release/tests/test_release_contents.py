import gzip
import io
import re
import tarfile
from pathlib import Path

import pytest

from encoder_release import contents
from encoder_release.contents import Package

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: C library
 with a second line

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
SITE = "opt/venv/lib/python3.11/site-packages"


def metadata(name: str, version: str, *more: str) -> str:
    return "\n".join(
        ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more, "", "Version: 9 of a readme"]
    )


def layer(path: Path, files: dict[str, str], *, compressed: bool = False) -> Path:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    path.write_bytes(gzip.compress(out.getvalue()) if compressed else out.getvalue())
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_packages_are_those_that_the_upper_layers_leave(tmp_path: Path, compressed: bool) -> None:
    lower = {
        "./var/lib/dpkg/status": "Package: old\nStatus: install ok installed\nVersion: 1\n",
        f"{SITE}/Py_YAML-6.0.dist-info/METADATA": metadata("Py.YAML", "6.0", "License-Expression: MIT"),
        f"{SITE}/gone-1.dist-info/METADATA": metadata("gone", "1"),
        f"{SITE}/pkg/METADATA": metadata("not-a-distribution", "1"),
        "opt/reference/lib/numpy-1.26.dist-info/METADATA": metadata("numpy", "1.26"),
        "opt/replaced/lib/x-1.dist-info/METADATA": metadata("x", "1"),
    }
    upper = {
        "var/lib/dpkg/status": STATUS,
        f"{SITE}/.wh.gone-1.dist-info": "",
        f"{SITE}/numpy-2.0.dist-info/METADATA": metadata("numpy", "2.0"),
        "opt/replaced/.wh..wh..opq": "",
        "opt/replaced/lib/y-2.dist-info/METADATA": metadata("y", "2"),
    }
    layers = [layer(tmp_path / "a", lower, compressed=compressed), layer(tmp_path / "b", upper, compressed=compressed)]
    assert contents.packages(contents.package_files(layers)) == [
        Package("deb", "libc6", "2.36-9+deb12u10", "amd64"),
        Package("pypi", "numpy", "1.26", place="opt/reference/lib"),
        Package("pypi", "numpy", "2.0", place=SITE),
        Package("pypi", "py-yaml", "6.0", license="MIT", place=SITE),
        Package("pypi", "y", "2", place="opt/replaced/lib"),
    ]


def test_a_document_has_what_the_format_requires() -> None:
    found = [
        Package("pypi", "numpy", "2.0", license="BSD-3-Clause"),
        Package("deb", "libc6", "2.36-9+deb12u10", "amd64"),
    ]
    digest = "sha256:" + "1" * 64
    document = contents.document("encoder-operator/operator", digest, "1.2.0", found, "2026-01-02T03:04:05Z")
    # SPDX 2.3, sections 6 and 7: fields that are mandatory
    assert {"spdxVersion", "dataLicense", "SPDXID", "name", "documentNamespace", "creationInfo"} <= set(document)
    assert document == contents.document(
        "encoder-operator/operator", digest, "1.2.0", found[::-1], "2026-01-02T03:04:05Z"
    )
    packages = document["packages"]
    assert all({"SPDXID", "name", "downloadLocation"} <= set(package) for package in packages)
    identifiers = [package["SPDXID"] for package in packages]
    assert all(re.fullmatch(r"SPDXRef-[a-zA-Z0-9.-]+", name) for name in identifiers)
    assert len(set(identifiers)) == len(identifiers) == 3
    urls = [package["externalRefs"][0]["referenceLocator"] for package in packages]
    assert urls == [
        f"pkg:oci/operator@sha256%3A{'1' * 64}",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        "pkg:pypi/numpy@2.0",
    ]
    contained = [entry["relatedSpdxElement"] for entry in document["relationships"]]
    assert contained == identifiers
