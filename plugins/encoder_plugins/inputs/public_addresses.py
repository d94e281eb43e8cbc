"""Which addresses of the internet protocol are public: those that a file may be fetched from. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

Address = IPv4Address | IPv6Address

# what `is_global` of every Python that is supported leaves open, or some of them
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            # protocol assignments, of which a cloud has its metadata service, and relays of 6to4
            "192.0.0.0/24",
            "192.88.99.0/24",
            # the platform of another cloud, from inside its machines
            "168.63.129.16/32",
            # translation for a site alone, compatible and site-local addresses, tunnels that lead to an address of version 4
            "64:ff9b:1::/48",
            "::/96",
            "fec0::/10",
            "2001::/32",
            "2002::/16",
        ),
    )
)
# translation by the well-known prefix: the last four bytes are the address that is reached
_TRANSLATED = ip_network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Return whether an address is reached over the internet, and leads to no network of a machine, a site or a cloud."""
    if isinstance(address, IPv6Address) and (mapped := address.ipv4_mapped) is not None:
        return is_public(mapped)
    if address in _TRANSLATED:
        return is_public(IPv4Address(address.packed[-4:]))
    return address.is_global and not address.is_multicast and not any(address in network for network in _NOT_PUBLIC)
