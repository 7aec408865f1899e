"""Where a webhook may go: `https://` and public addresses, but for hosts that a setting names.

A URL is checked when it is given, and its address before each attempt. The name is resolved once,
and the connection goes to the address that was checked: a name that changes in between (DNS
rebinding) gains nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

from jobs.errors import FieldError, Invalid, InvalidSpec

NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""Leads to the IPv4 address in its last 32 bits."""
MAX_URL = 2048


@dataclass(frozen=True)
class Place:
    """What of a webhook's URL decides where it leads."""

    host: str
    port: int
    trusted: bool
    """Named by the setting: any address will do."""


def check_url(url: str, trusted: Iterable[str]) -> Place:
    """The place that a webhook's URL leads to.

    Args:
        trusted: `host` or `host:port` that may be private and plain `http://`.

    Raises:
        InvalidSpec: not a URL that a webhook may have, with what is wrong.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as e:
        raise _refused(f"not a URL: {e}") from None
    if len(url) > MAX_URL or not url.isascii() or any(c.isspace() or c < "!" for c in url):
        raise _refused(f"expected at most {MAX_URL} printable ASCII characters")
    if parts.scheme not in ("https", "http") or not host:
        raise _refused("expected https://host/path")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _refused("expected no user, password or #fragment in it")
    port = port or (443 if parts.scheme == "https" else 80)
    place = Place(host, port, bool({host, f"{host}:{port}"} & set(trusted)))
    if not place.trusted:
        if parts.scheme != "https":
            raise _refused("expected https://; UPDRAFT_WEBHOOK_HOSTS names the exceptions")
        literal = _address(host)
        if host == "localhost" or (literal is not None and not is_public(literal)):
            raise _refused(f"{host} is not public; UPDRAFT_WEBHOOK_HOSTS names the exceptions")
    return place


def choose(place: Place, addresses: Sequence[str]) -> str:
    """The address to connect to, of those that the name resolved to.

    Raises:
        Invalid: one of them is not public. A name that has both is not to be trusted.
    """
    found = [_address(address) for address in addresses]
    if not found or None in found:
        raise Invalid(f"{place.host} has no address")
    if not place.trusted and not all(is_public(one) for one in found if one is not None):
        raise Invalid(f"{place.host} leads to an address that is not public")
    return str(found[0])


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether anybody on the internet could be meant; also through what carries IPv4 in IPv6."""
    if isinstance(address, IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in NAT64:
            inner.append(IPv4Address(int(address) & 0xFFFFFFFF))
        if carried := [one for one in inner if one is not None]:
            return all(is_public(one) for one in carried)
    return address.is_global and not address.is_multicast


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _refused(detail: str) -> InvalidSpec:
    return InvalidSpec([FieldError(pointer="url", detail=detail)])
