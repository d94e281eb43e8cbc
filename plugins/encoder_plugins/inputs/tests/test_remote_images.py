"""Images that requests name by their address: from a real server with a certificate, and from everything that must be refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from httpx_secure import httpx_ssrf_protection

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.inputs import remote
from encoder_plugins.inputs.remote import RemoteFiles, check, host_of
from encoder_plugins.prep.tests import certificates

HOSTS = frozenset({"images.example.com", "other.example.com:8443"})
FILE = b"GIF89a" + bytes(100)


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 1000
    image_bytes: int = 500
    image_seconds: int = 5


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
        ("https://images.example.com:99999/a.png", "not an address"),
        ("https://[::1/a.png", "not an address"),
        ("https://images.example.com\\@evil.example.org/a.png", "%XX"),
        ("https://images.example.com/\ta.png", "%XX"),
        ("https://ımages.example.com/a.png", "%XX"),
        ("https:///a.png", "is not allowed"),
        ("https://images.example.com/" + "a" * 2048, "the limit is 2048"),
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
    ],
)
def test_an_address_of_an_allowed_host_is_taken(address: str) -> None:
    assert check(address, HOSTS, path="data.image") == address
    assert remote.is_address(address)


def test_an_allowed_host_is_a_name_with_or_without_a_port() -> None:
    assert [host_of(name) for name in ("A.example.com", "a.example.com:443", "a.example.com:8443")] == [
        *("a.example.com", "a.example.com", "a.example.com:8443")
    ]
    for name in (
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


@dataclass
class Origin:
    """A server of images on the loopback interface.

    Attributes:
        host: As an allowed host.
        requests: What it was sent.
    """

    host: str
    requests: list[web.BaseRequest]

    def address(self, path: str) -> str:
        return f"https://{self.host}{path}"


async def _answer(request: web.BaseRequest, origin: Origin) -> web.StreamResponse:
    origin.requests.append(request)
    image = {"Content-Type": "image/gif"}
    match request.path:
        case "/a.gif" | "/b.gif":
            return web.Response(body=FILE, headers=image)
        case "/untyped":
            return web.Response(body=FILE, headers={"Content-Type": "application/octet-stream"})
        case "/page":
            return web.Response(text="<html>", content_type="text/html")
        case "/gone":
            raise web.HTTPNotFound
        case "/large":
            return web.Response(body=bytes(501), headers=image)
        case "/unstated":
            response = web.StreamResponse(headers=image)
            response.enable_chunked_encoding()
            await response.prepare(request)
            for _ in range(1000):
                await response.write(bytes(100))
            return response
        case "/compressed":
            return web.Response(body=FILE, headers={**image, "Content-Encoding": "gzip"})
        case "/empty":
            return web.Response(headers=image)
        case "/slow":
            await asyncio.sleep(30)
            return web.Response(body=FILE, headers=image)
        case "/moved":
            raise web.HTTPFound("/a.gif")
        case "/inside":
            raise web.HTTPFound("https://169.254.169.254/latest/meta-data")
        case "/plain":
            raise web.HTTPFound(f"http://{origin.host}/a.gif")
        case _:
            raise web.HTTPFound(request.path)


@pytest.fixture
async def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Origin]:
    certificate, key = certificates.write(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    found = Origin("", [])

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return await _answer(request, found)

    server = web.Server(answer)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    found.host = f"127.0.0.1:{port}"
    yield found
    await runner.cleanup()


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients connect to this machine, and to no other."""

    def protected(client: httpx.AsyncClient) -> httpx.AsyncClient:
        return httpx_ssrf_protection(
            client, check_globally_reachable=False, custom_validator=lambda host, address, port: address.is_loopback
        )

    monkeypatch.setattr(remote, "_protected", protected)


@pytest.mark.usefixtures("loopback")
async def test_files_come_in_the_fields_that_named_them(origin: Origin) -> None:
    files = RemoteFiles([origin.host], Limits())
    paths = {"data.images[0]": "/a.gif", "data.images[2]": "/moved", "data.images[3]": "/untyped"}
    found = await files.fetch({field: origin.address(path) for field, path in paths.items()})
    assert found == dict.fromkeys(paths, FILE)
    for request in origin.requests:
        assert (request.headers["Accept-Encoding"], request.headers.get("Cookie")) == ("identity", None)


@pytest.mark.usefixtures("loopback")
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/page", "answered with text/html"),
        ("/gone", "answered 404"),
        ("/large", "501 bytes; the limit is 500"),
        ("/unstated", "more than 500 bytes"),
        ("/compressed", "compressed body"),
        ("/empty", "the image is empty"),
        ("/around", "more than 3 redirects"),
        ("/inside", "the host 169.254.169.254 is not allowed"),
        ("/plain", "only https"),
    ],
)
async def test_what_is_no_image_within_the_limits_is_refused_by_field(origin: Origin, path: str, says: str) -> None:
    files = RemoteFiles([origin.host], Limits())
    with pytest.raises(InvalidRequest, match=says) as caught:
        await files.fetch({"data.images[0]": origin.address("/a.gif"), "data.images[1]": origin.address(path)})
    assert caught.value.param == "data.images[1]"


@pytest.mark.usefixtures("loopback")
async def test_all_images_of_a_request_share_its_time_and_its_bytes(origin: Origin) -> None:
    slow = {"data.images[0]": origin.address("/a.gif"), "data.images[1]": origin.address("/slow")}
    with pytest.raises(InvalidRequest, match="within 1 seconds") as caught:
        await RemoteFiles([origin.host], Limits(image_seconds=1)).fetch(slow)
    assert caught.value.param == "data.images[1]"
    many = {f"data.images[{position}]": origin.address("/a.gif") for position in range(12)}
    with pytest.raises(InvalidRequest, match="exceed 1000 bytes"):
        await RemoteFiles([origin.host], Limits()).fetch(many)


async def test_a_host_that_is_not_public_is_sent_nothing(origin: Origin) -> None:
    # an allowed name may lead to any address: what counts is the address
    port = origin.host.partition(":")[2]
    for host in (origin.host, f"localhost:{port}"):
        with pytest.raises(InvalidRequest, match="not a public one") as caught:
            await RemoteFiles([host], Limits()).fetch({"data.image": f"https://{host}/a.gif"})
        assert caught.value.param == "data.image"
    assert origin.requests == []


@pytest.mark.usefixtures("loopback")
async def test_a_certificate_that_is_not_trusted_is_not_accepted(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(InvalidRequest, match="could not be fetched: ConnectError"):
        await RemoteFiles([origin.host], Limits()).fetch({"data.image": origin.address("/a.gif")})
    assert origin.requests == []
