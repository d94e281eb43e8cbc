"""How a client reaches its server. Plain values, checked when they are made."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from numbers import Real
from pathlib import Path

import httpx

from encoder_client.errors import ArgumentError

# a proxy before the server may close a connection that was idle for 5 s; one that is used at that moment would be lost
KEEP_ALIVE_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a client reaches its server.

    Attributes:
        url: Where the server listens, with or without a path and a slash at the end: ``http://ner.demo.svc``,
            ``https://models.internal/search``.
        model: What the server calls the model; None leaves it out, since a server has one.
        lora: The name of a LoRA adapter that the server was started with; None for the model itself.
        api_key: Sent as ``Authorization: Bearer``; None sends none.
        headers: Further headers of every request.
        timeout: Seconds to wait for an answer, once the request is sent.
        connect_timeout: Seconds to wait for a connection.
        ca: A file of certificate authorities (PEM) that replaces the system's, an SSL context, or None.
        concurrency: Requests in flight at the same time, and connections that are kept.
        retry_seconds: Seconds after its first failure within which a request that the server did not take on (429, 503, connection
            refused) is sent again; 0 never sends it again.
    """

    url: str = field(repr=False)
    model: str | None = None
    lora: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 120.0
    connect_timeout: float = 10.0
    ca: str | Path | ssl.SSLContext | None = None
    concurrency: int = 8
    retry_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout"):
            seconds: object = getattr(self, name)
            if not isinstance(seconds, Real) or not float(seconds) > 0:
                raise ArgumentError("it must be a number of seconds above 0", param=name)
        if self.concurrency < 1:
            raise ArgumentError("it must be 1 or more", param="concurrency")
        for name, value in {"api_key": self.api_key or "", **dict(self.headers)}.items():
            # what is not a str, httpx would refuse without its name
            if not isinstance(value, str) or not (name + value).isascii() or not (name + value).isprintable():
                param = name if name == "api_key" else f"headers[{name!r}]"
                raise ArgumentError("a header has printable ASCII characters only", param=param)
        if not self.retry_seconds >= 0:
            raise ArgumentError("it must be 0 seconds or more", param="retry_seconds")

    def base_url(self) -> str:
        """Return the address that paths are put behind, without a slash at the end.

        Raises:
            ArgumentError: ``url`` is not the address of an HTTP server.
        """
        try:
            parsed = httpx.URL(self.url)
            # as the resolver of names will: no part of one is empty, or too long
            parsed.host.encode("idna")
        except (httpx.InvalidURL, TypeError, UnicodeError) as error:
            raise ArgumentError(f"{self.shown_url()!r} is not a URL: {error}", param="url") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ArgumentError(f"{self.shown_url()!r} has to begin with http:// or https:// and a host", param="url")
        if parsed.query or parsed.fragment:
            raise ArgumentError("the address of a server has neither a query nor a fragment", param="url")
        return str(parsed).rstrip("/").removesuffix("/pooling").rstrip("/")

    def shown_url(self) -> str:
        """Return the address without a user's name and password, for messages."""
        scheme, slashes, rest = str(self.url).rpartition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"

    def all_headers(self) -> dict[str, str]:
        """Return the headers of every request. Answers are not compressed: numbers hardly become smaller."""
        found = {"user-agent": f"encoder-client/{_version()}", "accept-encoding": "identity"}
        if self.api_key:
            found["authorization"] = f"Bearer {self.api_key}"
        return found | {name.lower(): value for name, value in self.headers.items()}

    def timeouts(self) -> httpx.Timeout:
        """Return the timeouts; waiting for a free connection has none, as the requests before take as long as they take."""
        return httpx.Timeout(self.timeout, connect=self.connect_timeout, pool=None)

    def limits(self, *, connections: int) -> httpx.Limits:
        """Return the bounds of a pool of connections."""
        return httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEP_ALIVE_SECONDS
        )

    def verify(self) -> ssl.SSLContext:
        """Return what a server's certificate is checked with.

        Raises:
            ArgumentError: The file of certificate authorities cannot be read.
        """
        if self.ca is None:
            return httpx.create_ssl_context()
        if isinstance(self.ca, ssl.SSLContext):
            return self.ca
        try:
            return ssl.create_default_context(cafile=str(self.ca))
        except (OSError, ssl.SSLError) as error:
            raise ArgumentError(f"{self.ca}: {error}", param="ca") from None


def _version() -> str:
    try:
        return metadata.version("encoder-operator")
    except metadata.PackageNotFoundError:
        return "unknown"
