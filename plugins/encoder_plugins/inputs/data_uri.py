"""Files that requests hold: as base64, or as data URIs. Nothing is ever fetched or opened. Pure."""

from __future__ import annotations

import re

import pybase64

from encoder_plugins.errors import InvalidRequest

# the scheme and the name of the encoding are the same in capitals (RFC 3986, RFC 2397)
_DATA = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def file_of(value: str, most_bytes: int, *, what: str, media_type: str, path: str) -> bytes:
    """Return the bytes of a file.

    Args:
        value: The field.
        most_bytes: Bytes that the file may have.
        what: What the file is, for messages.
        media_type: The media type of such a file, for messages.
        path: The field's path, for messages.

    Raises:
        InvalidRequest: It is neither a data URI nor base64, or empty, or too large.
    """
    prefix = _DATA.match(value)
    start = prefix.end() if prefix else 0
    if not prefix and _ADDRESS.match(value):
        raise InvalidRequest(
            f"an address is not fetched; send the {what} itself, as base64 or as data:{media_type};base64,...",
            param=path,
        )
    encoded = value[start:]
    if "\n" in encoded:
        # encoders for mail break lines: Python's encodebytes, Java's MIME encoder, base64(1)
        encoded = encoded.replace("\r", "").replace("\n", "")
    # three bytes are four characters
    size = len(encoded) * 3 // 4
    article = "an" if what[0] in "aeiou" else "a"
    if size - 2 > most_bytes:
        raise InvalidRequest(f"about {size} bytes; the limit is {most_bytes} {article} {what}", param=path)
    try:
        content = pybase64.b64decode(encoded, validate=True)
    except ValueError:
        raise InvalidRequest("it is neither base64 nor a data URI in base64", param=path) from None
    if not content:
        raise InvalidRequest(f"the {what} is empty", param=path)
    if len(content) > most_bytes:
        raise InvalidRequest(f"{len(content)} bytes; the limit is {most_bytes} {article} {what}", param=path)
    return content
