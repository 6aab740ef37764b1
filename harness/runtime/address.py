"""How followers find the leader of a run: a small file in the folder that all nodes share.

The leader writes host names, port and a random token under a name that all workers of the run
compute alike, by rename, readable by its user alone. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.record.files import safe_name
from harness.runtime.world import World

_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where a run's leader listens.

    Attributes:
        hosts: Names and numbers to try, the most promising first.
        token: Random text of this run; who does not know it is turned away.
    """

    hosts: tuple[str, ...]
    port: int
    token: str


def address_file(out: Path, world: World) -> Path:
    """Return the file in the output folder that holds the address of this run's leader."""
    return out / f".nodes-{safe_name(f'{world.run_id}-{world.restart_count}')}.json"


def address_to_json(address: Address) -> str:
    """Return an address as one line."""
    return json.dumps({"hosts": address.hosts, "port": address.port, "token": address.token})


def address_from_json(text: str) -> Address:
    """Read an address back.

    Raises:
        ValueError: for what is no JSON; KeyError and TypeError for other JSON.
    """
    found = json.loads(text)
    hosts = tuple(str(host) for host in found["hosts"])
    return Address(hosts=hosts, port=int(found["port"]), token=str(found["token"]))


def publish(file: Path, address: Address) -> None:
    """Write an address so that it is there whole or not at all, for the eyes of its user only."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(address_to_json(address))
        stream.flush()
        # The other nodes see what the file server has, not what this node keeps in memory.
        os.fsync(stream.fileno())
    os.replace(temporary, file)


def find(file: Path) -> Address | None:
    """Read an address, None while there is none."""
    try:
        # Opening the folder asks the file server; looking for the file alone may be answered from
        # what this node remembers of the folder, for half a minute on NFS.
        if file.name not in os.listdir(file.parent):
            return None
        return address_from_json(file.read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def withdraw(file: Path, address: Address) -> None:
    """Remove an address, unless another leader has put its own there since."""
    if find(file) == address:
        with contextlib.suppress(OSError):
            file.unlink()


def own_hosts(env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return names and numbers of this node, as the launcher and the resolver tell them.

    Where the launcher names a loopback address, all nodes of the run are on this host.
    """
    master = env.get("MASTER_ADDR", "")
    if is_loopback(master):
        return (master,)
    name = socket.gethostname()
    hosts = [master, name]
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        hosts += [str(entry[4][0]) for entry in found]
    hosts += [number for _, number in interfaces() if not is_loopback(number)]
    return tuple(dict.fromkeys(host for host in hosts if host))


def is_loopback(host: str) -> bool:
    """Tell whether a name or number can only mean the host it is used on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def plain(number: str) -> str:
    """Return an IPv4 address that came as an IPv6 one in its usual form."""
    with contextlib.suppress(ValueError):
        mapped = getattr(ipaddress.ip_address(number), "ipv4_mapped", None)
        return number if mapped is None else str(mapped)
    return number


def interfaces() -> tuple[tuple[str, str], ...]:
    """Return name and first IPv4 address of each network interface that has one."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found.append((name, socket.inet_ntoa(answer[20:24])))
    return tuple(found)


def interface_of(number: str, known: Sequence[tuple[str, str]] | None = None) -> str:
    """Return the interface that carries an address, empty where that is not known."""
    if is_loopback(number):
        return "lo"
    pairs = interfaces() if known is None else known
    return next((name for name, address in pairs if address == number), "")
