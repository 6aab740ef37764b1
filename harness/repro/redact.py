"""Takes out of texts and records what says who ran something, and where: names, paths, secrets.

What is known by value (this machine's and the run's hosts, users and folders) is replaced wherever
it stands; beyond that, by form: absolute paths, addresses, e-mail, credentials. The same host or
user keeps the same stand-in throughout, so that a reader can still tell them apart.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.repro.secrets import without_secrets

SECRET = "<secret>"  # noqa: S105 (what stands in a secret's place)
_GENERIC = frozenset(("root", "user", "admin", "ubuntu", "nobody", "localhost", "runner", "test"))
"""Names that say nothing about anybody, and are words of other meanings too."""
_SHORTEST = 3

_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_PATH = re.compile(r"(?<![\w.:/<>~-])~?/(?:[^\s\"'`,;:()\[\]{}<>|/]+/)+[^\s\"'`,;:()\[\]{}<>|/]*")
_PUBLIC = re.compile(r"(?:.*/)?((?:site-packages|dist-packages|megatron)/.*)")
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-f-]{8,}\b")
_NAME_KEYS = frozenset(("host", "uuid", "image", "platform"))
_VERSIONS = frozenset(
    (
        *("python", "torch", "cuda", "cudnn", "nccl", "driver", "megatron_core", "cudnn_frontend"),
        *("cute_dsl", "flash_mla", "transformer_engine", "tilelang", "capability"),
    )
)
"""Fields of records that hold versions: four numbers with dots are no address there."""
_NOT_TOLD = frozenset(("pid", "variables", "stacks", "rerun", "command", "file"))
"""Fields of records that tell a reader elsewhere nothing."""


@dataclass(kw_only=True, slots=True)
class Redactor:
    """Replaces what is known by value and by form.

    Attributes:
        hosts: Host names.
        users: User names.
        folders: Folder to its stand-in; longer ones first when they are replaced.
    """

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    folders: dict[str, str] = field(default_factory=dict)

    def text(self, text: str) -> str:
        """Return the text without what it should not tell."""
        text = _EMAIL.sub("<email>", without_secrets(text, SECRET))
        for folder in sorted(self.folders, key=len, reverse=True):
            text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?![\w-])", self.folders[folder], text)
        text = _PATH.sub(_path, text)
        for kind, names in (("host", self.hosts), ("user", self.users)):
            for number, name in enumerate(names):
                shown = f"<{kind}{number}>"
                text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", shown, text)
        return _UUID.sub("<device>", _ADDRESS.sub("<address>", text))

    def value(self, value: Any, key: str = "") -> Any:
        """Return JSON data without what it should not tell; keys are looked at, too."""
        if isinstance(value, Mapping):
            return {
                self.text(str(name)): self.value(item, str(name))
                for name, item in value.items()
                if name not in _NOT_TOLD
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item, key) for item in value]
        if not isinstance(value, str):
            return value
        if key in _VERSIONS:
            return value
        if key in _NAME_KEYS and value and value not in self.hosts:
            return f"<{key}>"
        return self.text(value)


def _path(match: re.Match[str]) -> str:
    """Keep of a path what is public: the part inside a package, else its last name."""
    path = match[0]
    public = _PUBLIC.fullmatch(path)
    if public is not None:
        return f"<path>/{public[1]}"
    return f"<path>/{path.rstrip('/').rsplit('/', 1)[-1]}"


def redactor_for(hosts: Iterable[str] = (), folders: Mapping[str, str] | None = None) -> Redactor:
    """Return a redactor that knows this machine and process beside what is given.

    Args:
        hosts: Further host names, such as those of a run's records.
        folders: Further folders, with what to write instead.
    """
    names = [socket.gethostname(), *hosts]
    names += [name.partition(".")[0] for name in names]
    home = str(Path.home())
    known = {home: "<home>", str(Path.cwd()): "<here>", **(folders or {})}
    return Redactor(
        hosts=_telling(names),
        users=_telling([_user(), os.environ.get("SUDO_USER", ""), Path(home).name]),
        folders={folder: shown for folder, shown in known.items() if len(folder) > 1},
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _telling(names: Iterable[str]) -> tuple[str, ...]:
    kept = [n for n in names if len(n) >= _SHORTEST and n.lower() not in _GENERIC]
    return tuple(dict.fromkeys(kept))
