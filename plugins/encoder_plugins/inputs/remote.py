"""The images and PDFs of a request that are addresses: fetched from hosts that the administrator allows, and from nowhere else.

| an address | its outcome |
|---|---|
| no host is allowed, which is the default | refused |
| not https, with a user or password, longer than 2 048 characters | refused |
| of a host, or a port, that is not in the list | refused |
| of a host of which an address is private, loopback, link-local or otherwise not public (``public_addresses``) | refused; no connection is made |
| a redirect | followed three times at most; each hop is checked as the first address is |
| another status than 200, another type than the file's, a compressed body | refused |
| more bytes than the limit, stated or sent; more seconds than the limit | refused |

The connection is checked again, and the request goes to the very address that was checked (httpx-secure): a name that changes its address
in between is sent nothing.
Proxies of the environment are not used: they would connect to what was never checked.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import urljoin, urlsplit

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.inputs.public_addresses import is_public

if TYPE_CHECKING:
    import httpx

MOST_CHARACTERS: Final = 2048
MOST_REDIRECTS: Final = 3
HTTPS: Final = 443
# of one request at the same time
_AT_ONCE = 8
_SCHEMES = ("http://", "https://")
_NOT_PUBLIC = "the host of the address is not a public one"
# stores name these types for a file that was given none
_UNTYPED = "application/octet-stream|binary/octet-stream"
_PARAMETERS = r"[ \t]*(;.*)?"
_IMAGE = re.compile(rf"(image/[a-z0-9.+-]+|{_UNTYPED}){_PARAMETERS}", re.IGNORECASE)
_PDF = re.compile(rf"(application/pdf|application/x-pdf|{_UNTYPED}){_PARAMETERS}", re.IGNORECASE)
# names of several parts, the last of which begins with a letter: certificates are not for numeric addresses
_HOST = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?(:[1-9][0-9]{0,4})?")
_MOST_OF_HOST = 259


class ImageLimits(Protocol):
    """The limits of images that are fetched; ``encoder_plugins.plugin.IMAGE_LIMITS`` describes them."""

    @property
    def body_bytes(self) -> int:
        """Bytes of the body of a request: those of all images that are fetched for one, too."""

    @property
    def image_bytes(self) -> int:
        """Bytes of the file of one image."""

    @property
    def image_seconds(self) -> int:
        """Seconds in which the images of one request must have been fetched."""


class PdfLimits(Protocol):
    """The limits of a PDF that is fetched; ``encoder_plugins.plugin.PDF_LIMITS`` describes them."""

    @property
    def body_bytes(self) -> int:
        """Bytes of the body of a request: those of a PDF that is fetched for one, too."""

    @property
    def pdf_bytes(self) -> int:
        """Bytes of the file of a PDF."""

    @property
    def pdf_fetch_seconds(self) -> int:
        """Seconds in which the PDF of a request must have been fetched."""


class Bound(NamedTuple):
    """A limit of requests.

    Attributes:
        value: Its value.
        name: Its name, for messages.
    """

    value: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of files, and what it is held to.

    Attributes:
        what: What such a file is, for messages.
        article: Its article.
        accept: The header ``Accept``.
        types: The types that a host may name.
        file_bytes: Bytes of one file.
        request_bytes: Bytes of all files of a request.
        seconds: Seconds in which all files of a request must have been fetched.
    """

    what: str
    article: str
    accept: str
    types: re.Pattern[str]
    file_bytes: Bound
    request_bytes: Bound
    seconds: Bound


def images(limits: ImageLimits) -> Kind:
    """Return what images are held to."""
    return Kind(
        what="image",
        article="an",
        accept="image/*",
        types=_IMAGE,
        file_bytes=Bound(limits.image_bytes, "image_bytes"),
        request_bytes=Bound(limits.body_bytes, "body_bytes"),
        seconds=Bound(limits.image_seconds, "image_seconds"),
    )


def pdfs(limits: PdfLimits) -> Kind:
    """Return what PDFs are held to."""
    return Kind(
        what="PDF",
        article="a",
        accept="application/pdf",
        types=_PDF,
        file_bytes=Bound(limits.pdf_bytes, "pdf_bytes"),
        request_bytes=Bound(limits.body_bytes, "body_bytes"),
        seconds=Bound(limits.pdf_fetch_seconds, "pdf_fetch_seconds"),
    )


def host_of(value: str) -> str:
    """Return an entry of the list of allowed hosts as it is compared: a name, or a name and a port.

    Raises:
        ValueError: It is neither, or a numeric address.
    """
    host = value.lower()
    if len(host) > _MOST_OF_HOST or not _HOST.fullmatch(host):
        raise ValueError(f"{value!r} is not the name of a host, such as images.example.com or images.example.com:8443")
    return host.removesuffix(f":{HTTPS}")


def is_address(value: str) -> bool:
    """Return whether a field holds an address, and not a file."""
    return value[:8].lower().startswith(_SCHEMES)


def check(address: str, hosts: Collection[str], *, path: str) -> str:
    """Return an address that may be fetched. Pure.

    Args:
        address: The field.
        hosts: The hosts that are allowed, from ``host_of``.
        path: The field's path, for messages.

    Raises:
        InvalidRequest: It is not an address, or not one of these hosts.
    """
    if len(address) > MOST_CHARACTERS:
        raise InvalidRequest(f"an address of {len(address)} characters; the limit is {MOST_CHARACTERS}", param=path)
    # no control characters and no spaces, which parsers of addresses drop or read differently
    if not address.isascii() or not address.isprintable() or " " in address or "\\" in address:
        raise InvalidRequest("the address has characters that an address must have in %XX", param=path)
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise InvalidRequest("not an address", param=path) from None
    if parts.scheme != "https":
        raise InvalidRequest("only https addresses are fetched", param=path)
    if "@" in parts.netloc:
        raise InvalidRequest("the address has a user or a password; leave them out", param=path)
    host = (parts.hostname or "").rstrip(".")
    named = host if port in (None, HTTPS) else f"{host}:{port}"
    if named not in hosts:
        raise InvalidRequest(
            f"the host {named[:253]} is not allowed; files are fetched from {', '.join(sorted(hosts))}", param=path
        )
    return address


class RemoteFiles:
    """Fetches files of one kind for requests. Used by many at once, in one event loop or in several.

    Args:
        hosts: The hosts that are allowed, from ``host_of``.
        kind: What is fetched: ``images`` or ``pdfs``.
    """

    def __init__(self, hosts: Collection[str], kind: Kind) -> None:
        self._hosts = frozenset(hosts)
        self._kind = kind

    async def fetch(self, addresses: Mapping[str, str], *, before: int = 0) -> dict[str, bytes]:
        """Return the file of each field.

        Args:
            addresses: An address for each field's path.
            before: Bytes that the request has fetched already.

        Raises:
            InvalidRequest: One of them cannot be fetched; the others are given up.
        """
        left = _Bytes(self._kind, before)
        seconds, limit = self._kind.seconds
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(client: httpx.AsyncClient, path: str, address: str) -> bytes:
            async with turns:
                return await self._file(client, path, address, left)

        async with self._client() as client:
            tasks: Sequence[asyncio.Task[bytes]] = []
            try:
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(client, path, address)) for path, address in addresses.items()]
            except TimeoutError:
                late = next((p for p, task in zip(addresses, tasks, strict=False) if task.cancelled()), "data")
                raise InvalidRequest(
                    f"not fetched within {seconds} seconds, the limit of all {self._kind.what}s of a request ({limit})",
                    param=late,
                ) from None
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return {path: task.result() for path, task in zip(addresses, tasks, strict=True)}

    async def _file(self, client: httpx.AsyncClient, path: str, address: str, left: _Bytes) -> bytes:
        import httpx
        from httpx_secure import SSRFProtectionError

        try:
            for _ in range(MOST_REDIRECTS + 1):
                await self._check_host(address, path)
                async with client.stream("GET", address) as response:
                    if response.has_redirect_location:
                        address = check(urljoin(address, response.headers["location"]), self._hosts, path=path)
                        continue
                    return await self._body(response, path, left)
        except SSRFProtectionError:
            raise InvalidRequest(_NOT_PUBLIC, param=path) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InvalidRequest(
                f"the {self._kind.what} could not be fetched: {type(error).__name__}", param=path
            ) from None
        raise InvalidRequest(f"more than {MOST_REDIRECTS} redirects", param=path)

    async def _check_host(self, address: str, path: str) -> None:
        """Refuse a host of which an address is not public, before any connection: whether one can be made is an answer, too."""
        parts = urlsplit(address)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                parts.hostname, parts.port or HTTPS, type=socket.SOCK_STREAM
            )
        except OSError:
            raise InvalidRequest(
                f"the {self._kind.what} could not be fetched: the name of its host has no address", param=path
            ) from None
        if not all(is_public(ip_address(where[0])) for *_, where in found):
            raise InvalidRequest(_NOT_PUBLIC, param=path)

    async def _body(self, response: httpx.Response, path: str, left: _Bytes) -> bytes:
        if response.status_code != 200:
            raise InvalidRequest(f"the host answered {response.status_code}, not 200", param=path)
        kind = self._kind
        most, limit = kind.file_bytes
        found = response.headers.get("content-type", "")
        if not kind.types.fullmatch(found):
            raise InvalidRequest(
                f"the host answered with {found[:80] or 'no type'}, not with {kind.article} {kind.what}", param=path
            )
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise InvalidRequest("the host answered with a compressed body", param=path)
        stated = response.headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > most:
            raise InvalidRequest(
                f"{stated} bytes; the limit is {most} {kind.article} {kind.what} ({limit})", param=path
            )
        content = bytearray()
        async for part in response.aiter_raw():
            content += part
            left.take(len(part), path)
            if len(content) > most:
                raise InvalidRequest(
                    f"more than {most} bytes, the limit of {kind.article} {kind.what} ({limit})", param=path
                )
        if not content:
            raise InvalidRequest(f"the {kind.what} is empty", param=path)
        return bytes(content)

    def _client(self) -> httpx.AsyncClient:
        import httpx

        # no proxy or .netrc of the environment, and no cookies from one request to the next
        client = httpx.AsyncClient(
            verify=self._certificates,
            trust_env=False,
            follow_redirects=False,
            timeout=self._kind.seconds.value,
            headers={"Accept": self._kind.accept, "Accept-Encoding": "identity", "User-Agent": "encoder-operator"},
        )
        return _protected(client)

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        import certifi

        # reading them takes tens of milliseconds
        return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())


class _Bytes:
    """Bytes that one request may still fetch."""

    def __init__(self, kind: Kind, before: int) -> None:
        self._kind = kind
        self._left = kind.request_bytes.value - before

    def take(self, count: int, path: str) -> None:
        self._left -= count
        if self._left < 0:
            most, limit = self._kind.request_bytes
            raise InvalidRequest(
                f"the files of the request exceed {most} bytes, the limit of its body ({limit})",
                param=path,
            )


def _protected(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Let a client connect to public addresses only."""
    from httpx_secure import httpx_ssrf_protection

    return httpx_ssrf_protection(client, custom_validator=lambda host, address, port: is_public(address))
