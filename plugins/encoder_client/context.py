"""What a call is planned from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from encoder_client.errors import ArgumentError
from encoder_client.server import Server
from encoder_client.settings import Settings
from encoder_client.work import Batch, Item, envelope_of, positive, split


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a call is planned from.

    Attributes:
        server: What the server says about itself.
        settings: How it is reached.
        truncate_dim: Numbers to keep of each vector where a call names none; None keeps all.
    """

    server: Server
    settings: Settings
    truncate_dim: int | None = None

    def batches(
        self,
        items: Iterable[Item],
        common: Mapping[str, Any],
        *,
        batch_size: int,
        limits: Iterable[str] = ("texts",),
        divisible: Iterable[str] = (),
    ) -> Iterable[Batch]:
        """Return the requests for ``items``.

        Args:
            items: The items of the call.
            common: Fields of ``data`` that all of them share.
            batch_size: Items of one request, where the server's limits permit as many.
            limits: Limits of the server that count items.
            divisible: Fields whose refusal may mean that a request has too many items.

        Raises:
            ArgumentError: ``batch_size`` is below 1, or a field cannot be sent.
        """
        bounds = [bound for name in limits if (bound := self.server.limit(name)) is not None]
        return split(
            items,
            self.server.limits,
            most=min([positive(batch_size, param="batch_size"), *bounds]),
            envelope=envelope_of({"model": self.settings.model, "lora": self.settings.lora}, common),
            divisible=divisible,
        )


def refuse(because: str, **arguments: Any) -> None:
    """Refuse arguments that are neither None nor False.

    Raises:
        ArgumentError: One of them is given; its ``param`` is the name.
    """
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise ArgumentError(because, param=name)


def require(**arguments: Any) -> None:
    """Refuse arguments that are None: they would be left out of a request, whose default is another one than the library's.

    Raises:
        ArgumentError: One of them is None; its ``param`` is the name.
    """
    for name, value in arguments.items():
        if value is None:
            raise ArgumentError("it is None; leave it out for its default", param=name)
