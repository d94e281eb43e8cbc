"""Images and PDFs that requests name by their address: from a real server with a certificate, and from everything that must be refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.inputs import remote
from encoder_plugins.inputs.public_addresses import is_public
from encoder_plugins.inputs.remote import Kind, RemoteFiles, check, host_of, images, pdfs
from encoder_plugins.inputs.tests import origin as origins
from encoder_plugins.inputs.tests.origin import Origin
from encoder_plugins.inputs.tests.pdfs import pdf

HOSTS = frozenset({"images.example.com", "other.example.com:8443"})
FILE = b"GIF89a" + bytes(100)
PDF = pdf()[:400]
FILES = {
    "/a.gif": ("image/gif", FILE),
    "/a.pdf": ("application/pdf", PDF),
    "/b.pdf": ("Application/X-PDF ; version=1.7", PDF),
    "/untyped": ("application/octet-stream", FILE),
    "/page": ("text/html", b"<html>"),
    "/typed": ("text/" + "a" * 100, b"a"),
    "/large.gif": ("image/gif", bytes(501)),
    "/most.gif": ("image/gif", bytes(500)),
    "/large.pdf": ("application/pdf", bytes(451)),
    "/empty.gif": ("image/gif", b""),
    "/empty.pdf": ("application/pdf", b""),
}


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 1000
    image_bytes: int = 500
    image_seconds: int = 5
    pdf_bytes: int = 450
    pdf_fetch_seconds: int = 5


IMAGES, PDFS = images(Limits()), pdfs(Limits())


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://images.example.com/a.png", "only https"),
        ("https://user:secret@images.example.com/a.png", "user or a password"),
        ("https://images.example.com@evil.example.org/a.png", "user or a password"),
        ("https://evil.example.org/a.png", "evil.example.org is not allowed"),
        ("https://images.example.com.evil.example.org/a.png", "is not allowed"),
        ("https://images.example.com:22/a.png", "images.example.com:22 is not allowed"),
        ("https://other.example.com/a.png", "other.example.com is not allowed"),
        ("https://169.254.169.254/latest/meta-data", "is not allowed"),
        ("https://[::1]/a.png", "is not allowed"),
        (f"https://{'a' * 1000}/a.png", "the host a{253} is not allowed"),
        ("https://images.example.com:99999/a.png", "not an address"),
        ("https://[::1/a.png", "not an address"),
        ("https://images.example.com\\@evil.example.org/a.png", "%XX"),
        ("https://images.example.com/\ta.png", "%XX"),
        ("https://ımages.example.com/a.png", "%XX"),
        ("https:///a.png", "is not allowed"),
        ("https://images.example.com/" + "a" * 2022, "2049 characters; the limit is 2048"),
    ],
)
def test_an_address_of_another_host_or_kind_is_refused(address: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        check(address, HOSTS, path="data.image")
    assert caught.value.param == "data.image"
    # it is compared with the list, not printed with what is secret in it
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "https://images.example.com/a.png?b=c#d",
        "HTTPS://IMAGES.EXAMPLE.COM:443/a.png",
        "https://images.example.com./a.png",
        "https://other.example.com:8443/a.png",
        "https://images.example.com/" + "a" * 2021,
    ],
)
def test_an_address_of_an_allowed_host_is_taken(address: str) -> None:
    assert check(address, HOSTS, path="data.image") == address
    assert remote.is_address(address)
    assert remote.is_address("http" + address[5:])
    assert not remote.is_address(address[7:])


def test_an_allowed_host_is_a_name_with_or_without_a_port() -> None:
    assert [host_of(name) for name in ("A.example.com", "a.example.com:443", "a.example.com:8443")] == [
        *("a.example.com", "a.example.com", "a.example.com:8443")
    ]
    # the longest name that there is
    longest = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert host_of(f"{longest}:65535") == f"{longest}:65535"
    for name in (
        f"{longest}b:65535",
        "localhost",
        "127.0.0.1",
        "[::1]",
        "a.example.com/",
        "*.example.com",
        "https://a.example.com",
        "a..com",
    ):
        with pytest.raises(ValueError, match="not the name of a host"):
            host_of(name)


@pytest.fixture
async def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Origin]:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    async with origins.running(FILES, tmp_path) as found:
        yield found


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients connect to this machine, and to no other."""
    origins.allow_loopback(monkeypatch)


@pytest.mark.usefixtures("loopback")
async def test_files_come_in_the_fields_that_named_them(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    # a proxy of the environment would connect to what was never checked
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    paths = {"data.images[0]": "/a.gif", "data.images[2]": "/moved/a.gif", "data.images[3]": "/untyped"}
    found = await RemoteFiles([origin.host], IMAGES).fetch({at: origin.address(path) for at, path in paths.items()})
    assert found == dict.fromkeys(paths, FILE)
    most = {"data.image": origin.address("/most.gif")}
    assert await RemoteFiles([origin.host], IMAGES).fetch(most) == {"data.image": bytes(500)}
    for path in ("/a.pdf", "/b.pdf", "/moved/a.pdf"):
        found = await RemoteFiles([origin.host], PDFS).fetch({"data.pdf": origin.address(path)})
        assert found == {"data.pdf": PDF}
    for request in origin.requests:
        assert (request.headers["Accept-Encoding"], request.headers.get("Cookie")) == ("identity", None)
    accepted = {(request.path.rpartition(".")[2], request.headers["Accept"]) for request in origin.requests}
    assert accepted == {("gif", "image/*"), ("/untyped", "image/*"), ("pdf", "application/pdf")}


@pytest.mark.usefixtures("loopback")
@pytest.mark.parametrize(
    ("kind", "path", "says"),
    [
        (IMAGES, "/page", "answered with text/html, not with an image"),
        (PDFS, "/page", "answered with text/html, not with a PDF"),
        (IMAGES, "/typed", f"answered with text/{'a' * 75}, not with an image"),
        (IMAGES, "/a.pdf", "answered with application/pdf, not with an image"),
        (PDFS, "/a.gif", "answered with image/gif, not with a PDF"),
        (PDFS, "/gone", "answered 404"),
        (IMAGES, "/large.gif", "501 bytes; the limit is 500 an image (image_bytes)"),
        (PDFS, "/large.pdf", "451 bytes; the limit is 450 a PDF (pdf_bytes)"),
        (IMAGES, "/unstated/a.gif", "more than 500 bytes, the limit of an image (image_bytes)"),
        (PDFS, "/unstated/a.pdf", "more than 450 bytes, the limit of a PDF (pdf_bytes)"),
        (PDFS, "/compressed/a.pdf", "compressed body"),
        (IMAGES, "/empty.gif", "the image is empty"),
        (PDFS, "/empty.pdf", "the PDF is empty"),
        (PDFS, "/around/a.pdf", "more than 3 redirects"),
        (PDFS, "/inside/latest", "the host 169.254.169.254 is not allowed; files are fetched from 127.0.0.1:"),
        (PDFS, "/plain/a.pdf", "only https"),
        (PDFS, "/local/a.pdf", "only https"),
    ],
)
async def test_what_is_no_file_of_its_kind_within_the_limits_is_refused_by_field(
    origin: Origin, kind: Kind, path: str, says: str
) -> None:
    good = origin.address("/a.gif" if kind is IMAGES else "/a.pdf")
    with pytest.raises(InvalidRequest) as caught:
        await RemoteFiles([origin.host], kind).fetch({"data.first": good, "data.second": origin.address(path)})
    assert (caught.value.param, says in caught.value.message) == ("data.second", True), caught.value.message


@pytest.mark.usefixtures("loopback")
async def test_all_files_of_a_request_share_its_time_and_its_bytes(origin: Origin) -> None:
    for kind, name, says in (
        (images(Limits(image_seconds=1)), "a.gif", "within 1 seconds, the limit of all images of a request (image_sec"),
        (
            pdfs(Limits(pdf_fetch_seconds=1)),
            "a.pdf",
            "within 1 seconds, the limit of all PDFs of a request (pdf_fetch_",
        ),
    ):
        slow = {"data.first": origin.address(f"/{name}"), "data.second": origin.address(f"/slow/{name}")}
        with pytest.raises(InvalidRequest) as caught:
            await RemoteFiles([origin.host], kind).fetch(slow)
        assert (caught.value.param, says in caught.value.message) == ("data.second", True), caught.value.message
    many = {f"data.images[{position}]": origin.address("/a.gif") for position in range(12)}
    with pytest.raises(InvalidRequest, match=r"the files .* exceed 1000 bytes, the limit of its body \(body_bytes\)"):
        await RemoteFiles([origin.host], IMAGES).fetch(many)
    with pytest.raises(InvalidRequest, match=r"the files .* exceed 300 bytes, the limit of its body \(body_bytes\)"):
        await RemoteFiles([origin.host], pdfs(Limits(body_bytes=300))).fetch({"data.pdf": origin.address("/a.pdf")})
    # with those of another kind that were fetched before
    one = {"data.documents[0].pdf": origin.address("/a.pdf")}
    assert await RemoteFiles([origin.host], PDFS).fetch(one, before=1000 - len(PDF)) == {"data.documents[0].pdf": PDF}
    with pytest.raises(InvalidRequest, match=r"exceed 1000 bytes"):
        await RemoteFiles([origin.host], PDFS).fetch(one, before=1001 - len(PDF))


@pytest.mark.usefixtures("loopback")
async def test_eight_files_of_a_request_are_fetched_at_once(origin: Origin) -> None:
    origin.crowd = 8
    many = {f"data.images[{position}]": origin.address("/crowd/a.gif") for position in range(20)}
    assert len(await RemoteFiles([origin.host], images(Limits(body_bytes=20 * len(FILE)))).fetch(many)) == 20
    assert origin.most_at_once == 8


async def test_no_connection_is_made_to_a_host_that_is_not_public() -> None:
    connections = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.close()

    # an allowed name may lead to any address: what counts is the address
    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
            for kind, field in ((IMAGES, "data.image"), (PDFS, "data.pdf")):
                with pytest.raises(InvalidRequest, match="not a public one") as caught:
                    await RemoteFiles([host], kind).fetch({field: f"https://{host}/a.gif"})
                assert caught.value.param == field
        assert connections == []


async def test_one_address_of_a_host_that_is_not_public_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolved(_: object, host: str, port: int, **more: object) -> list[tuple[object, ...]]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, host)
        return [(*kind, ("93.184.215.14", port)), (*kind, ("10.0.0.5", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolved)
    with pytest.raises(InvalidRequest, match="not a public one"):
        await RemoteFiles(["images.example.com"], IMAGES).fetch({"data.image": "https://images.example.com/a.gif"})


async def test_a_name_that_changes_its_address_is_sent_nothing(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    # public when it is resolved first, and this machine when the connection is made
    async def public(*_: object) -> None:
        pass

    monkeypatch.setattr(RemoteFiles, "_check_host", public)
    with pytest.raises(InvalidRequest, match="not a public one"):
        await RemoteFiles([origin.host], IMAGES).fetch({"data.image": origin.address("/a.gif")})
    assert origin.requests == []


async def test_a_name_without_an_address_is_refused_by_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    # a resolver may answer to any name
    async def unknown(*_: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", unknown)
    with pytest.raises(InvalidRequest, match="the name of its host has no address") as caught:
        await RemoteFiles(["images.invalid"], IMAGES).fetch({"data.image": "https://images.invalid/a.gif"})
    assert caught.value.param == "data.image"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.215.14", True),
        ("2606:2800:220:1::1", True),
        ("64:ff9b::5db8:d70e", True),
        ("::ffff:93.184.215.14", True),
        *dict.fromkeys(
            (
                *("0.0.0.0", "10.0.0.5", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.168.1.1"),
                *(
                    "168.63.129.16",
                    "192.0.0.192",
                    "192.88.99.1",
                    "198.18.0.1",
                    "224.0.0.1",
                    "240.0.0.1",
                    "255.255.255.255",
                ),
                *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"),
                *(
                    "::10.0.0.1",
                    "::ffff:10.0.0.1",
                    "64:ff9b::10.0.0.1",
                    "64:ff9b:1::10.0.0.1",
                    "2001::1",
                    "2002:a00:1::1",
                ),
            ),
            False,
        ).items(),
    ],
)
def test_the_addresses_that_are_public(address: str, expected: bool) -> None:
    assert is_public(ip_address(address)) is expected


@pytest.mark.usefixtures("loopback")
async def test_the_address_of_each_hop_is_checked(origin: Origin) -> None:
    files = RemoteFiles([origin.host, "169.254.169.254"], PDFS)
    with pytest.raises(InvalidRequest, match="not a public one") as caught:
        await files.fetch({"data.pdf": origin.address("/inside/latest")})
    assert (caught.value.param, [request.path for request in origin.requests]) == ("data.pdf", ["/inside/latest"])


@pytest.mark.usefixtures("loopback")
async def test_a_certificate_that_is_not_trusted_is_not_accepted(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(InvalidRequest, match="the PDF could not be fetched: ConnectError"):
        await RemoteFiles([origin.host], PDFS).fetch({"data.pdf": origin.address("/a.pdf")})
    assert origin.requests == []
