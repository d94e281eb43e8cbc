"""How much time of a GPU and its host one item takes, as a sum of fixed costs. Pure, standard library only.

A saturated server has two parts that work at the same time: the host (HTTP, JSON, tokens, launching kernels, decoding) and the
device. Each part is linear in what a request contains. Where one part is much slower than the other one, it decides alone; where
both take as long, they hinder each other. ``overlap`` describes how well they run at the same time: 1 adds them, and large values
take the slower one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One item of a stream of equal requests.

    Attributes:
        items: Texts, or pages, of one request.
        tokens: Of one text, without labels, prefixes and special tokens; 0 for a page.
        labels: Of the request; 0 where the plugin takes none.
    """

    items: float
    tokens: float = 0
    labels: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The coefficients, in microseconds; none is negative.

    Attributes:
        request: Of the host, for each request.
        item: Of the host, for each text or page.
        token: Of the host, for each token of a text.
        label: Of the host, for each label of a text.
        device_token: Of the device, for each token of a text.
        device_pair: Of the device, for each pair of tokens of a text: attention.
        device_label: Of the device, for each label of a text.
        device_token_label: Of the device, for each token with each label of a text: the head's scores.
        overlap: The exponent with which host and device are combined, 1 or more; no time.
    """

    request: float
    item: float
    token: float = 0.0
    label: float = 0.0
    device_token: float = 0.0
    device_pair: float = 0.0
    device_label: float = 0.0
    device_token_label: float = 0.0
    overlap: float = 1.0

    def host(self, work: Work) -> float:
        """Return the microseconds of the host for one item."""
        return self.request / work.items + self.item + self.token * work.tokens + self.label * work.labels

    def device(self, work: Work) -> float:
        """Return the microseconds of the device for one item."""
        return (
            self.device_token * work.tokens
            + self.device_pair * work.tokens**2
            + self.device_label * work.labels
            + self.device_token_label * work.tokens * work.labels
        )

    def microseconds(self, work: Work) -> float:
        """Return the microseconds between two items of a saturated server."""
        host, device = self.host(work), self.device(work)
        slower, faster = max(host, device), min(host, device)
        return slower * (1 + (faster / slower) ** self.overlap) ** (1 / self.overlap) if slower else 0.0

    def rate(self, work: Work) -> float:
        """Return the items a second of a saturated server."""
        return 1e6 / self.microseconds(work)


COEFFICIENTS: tuple[str, ...] = tuple(field.name for field in fields(Cost) if field.name != "overlap")
"""The names of the coefficients that are times."""
