"""The catalogue of known faults: kinds, public entries, and the scenarios that cover them.

``configs/catalogue.yaml`` is the one place for what is said of them. Reading it takes PyYAML and no
more, since ``dsa-harness catalogue`` is to answer at once; scenario files are skimmed for their id
and their links, and checked elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from harness.scenario.files import PROJECT_ROOT

CATALOGUE_FILE = PROJECT_ROOT / "configs" / "catalogue.yaml"
SCENARIOS_DIR = PROJECT_ROOT / "scenarios"

State = Literal["run", "kind", "needs_gpu", "not_applicable"]
EVIDENCE = {
    "selection": "picks against the exact reference",
    "bounds": "picks past the limit or in another sequence",
    "address": "an address outside its tensor",
    "calls": "kernel calls, and the path taken",
    "memo": "layout tables built and reused, and what outlasts a microbatch",
    "gradient": "gradients",
    "value": "values of the forward",
    "hang": "a limit passed, with the stacks of all ranks",
    "graph": "warnings, captures and replays of CUDA graphs",
    "text": "the text of an error, and where it is raised",
    "memory": "bytes",
    "time": "waits, copies and compilations",
    "repeat": "the same again, or on another rank",
    "metric": "scale of a loss or a metric",
}
"""Kinds of evidence that an entry asks for."""
NEEDS_REASON = ("needs_gpu", "not_applicable")

_NUMBERED = re.compile(r"https://github\.com/([^/\s]+)/([^/\s]+)/(?:pull|issues)/(\d+)")
_PASTED = re.compile(
    r"<?(?:https?://)?(?:www\.)?github\.com/([^/\s]+)/([^/\s]+)/(?:pull|issues)/(\d+)",
    re.IGNORECASE,
)
"""A link as people paste it: out of a browser, a mail or prose."""
_SHORT = re.compile(r"(?:(?:([\w.-]+)/)?([\w.-]+)#|#?)(\d+)")
_ID = re.compile(r"^id: *['\"]?([^\s'\"]+)", re.MULTILINE)
_LINK = re.compile(r"https?://[^\s,\]\"']+")
_SOURCE = re.compile(r"^source:.*?(?=^\S)", re.MULTILINE | re.DOTALL)


class CatalogueError(ValueError):
    """The catalogue cannot be used; the text names the file, the entry, and what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: Word, and by custom the folder of its scenarios.
        title: In a few words.
        sign: How one recognises it.
    """

    name: str
    title: str
    sign: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One public report, or several of one fault.

    Attributes:
        name: Such as ``cudnn-frontend#316``.
        links: The first one names the entry.
        kinds: Names of ``Kind``.
        what: Symptom, one line.
        evidence: Names of ``EVIDENCE``.
        state: Whether it runs here, is covered by its kinds, needs a GPU, or does not apply.
        reason: Why it needs a GPU or does not apply.
        gpu: What a GPU adds to an entry that runs here.
        scenarios: Ids of scenario files (families) that state it.
    """

    name: str
    links: tuple[str, ...]
    kinds: tuple[str, ...]
    what: str
    evidence: tuple[str, ...]
    state: State
    reason: str = ""
    gpu: str = ""
    scenarios: tuple[str, ...] = ()

    @property
    def asks_for_a_gpu(self) -> bool:
        """Whether there is something that a GPU alone can show."""
        return self.state == "needs_gpu" or bool(self.gpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """All kinds, by name, and all entries, in the order of the file."""

    kinds: Mapping[str, Kind]
    entries: tuple[Entry, ...]

    def of_kind(self, name: str) -> tuple[Entry, ...]:
        """Entries of a kind."""
        return tuple(entry for entry in self.entries if name in entry.kinds)

    def scenarios_of(self, name: str) -> tuple[str, ...]:
        """Ids of the scenarios of a kind: those of its entries, each once, in order."""
        found = (scenario for entry in self.of_kind(name) for scenario in entry.scenarios)
        return tuple(dict.fromkeys(found))

    def covering(self, entry: Entry) -> tuple[str, ...]:
        """Ids of the scenarios that cover an entry: its own, or those of its kinds."""
        if entry.scenarios or entry.state != "kind":
            return entry.scenarios
        found = (scenario for kind in entry.kinds for scenario in self.scenarios_of(kind))
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class SkimmedFile:
    """A scenario file as far as the catalogue looks at it."""

    id: str
    file: Path
    links: tuple[str, ...]


def read_catalogue(path: Path = CATALOGUE_FILE) -> Catalogue:
    """Read the catalogue.

    Raises:
        CatalogueError: It cannot be read, or an entry says something that there is not.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CatalogueError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict) or set(data) != {"kinds", "entries"}:
        raise CatalogueError(f"{path}: expected the keys kinds and entries, and no others")
    try:
        kinds = {name: Kind(name=name, **said) for name, said in data["kinds"].items()}
        entries = tuple(_entry(said, kinds) for said in data["entries"])
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise CatalogueError(f"{path}: {error}") from error
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CatalogueError(f"{path}: {', '.join(twice)}: named twice; give one of them a name")
    return Catalogue(kinds=kinds, entries=entries)


def _entry(said: dict[str, Any], kinds: Mapping[str, Kind]) -> Entry:
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in said.items()}
    rest["name"] = said.get("name") or short_name(said["links"][0])
    entry = Entry(**rest)
    closed = (
        ("kinds", entry.kinds, tuple(kinds)),
        ("evidence", entry.evidence, tuple(EVIDENCE)),
        ("state", (entry.state,), get_args(State)),
    )
    for key, found, allowed in closed:
        if unknown := [name for name in found if name not in allowed]:
            raise ValueError(
                f"{entry.name}: {key} {', '.join(unknown)}: expected {', '.join(allowed)}"
            )
    if (entry.state in NEEDS_REASON) != bool(entry.reason):
        raise ValueError(
            f"{entry.name}: reason goes with the states {' and '.join(NEEDS_REASON)}, found state "
            f"{entry.state} and reason {entry.reason!r}"
        )
    if (entry.state == "run") != bool(entry.scenarios) and entry.state != "needs_gpu":
        raise ValueError(
            f"{entry.name}: state run goes with scenarios of its own, found state {entry.state} "
            f"and {len(entry.scenarios)} of them"
        )
    return entry


def short_name(link: str) -> str:
    """Return ``cudnn-frontend#316`` for an issue or pull request of NVIDIA's, else with its owner.

    Raises:
        ValueError: The link is of another form.
    """
    match = _NUMBERED.fullmatch(link)
    if match is None:
        raise ValueError(
            f"{link}: expected https://github.com/OWNER/REPOSITORY/pull/N or .../issues/N"
        )
    owner, repository, number = match.groups()
    return f"{repository}#{number}" if owner == "NVIDIA" else f"{owner}/{repository}#{number}"


def skim(folder: Path = SCENARIOS_DIR) -> tuple[SkimmedFile, ...]:
    """Return id and source links of every scenario file below a folder, without checking it."""
    found = []
    for file in sorted(folder.rglob("*.yaml")):
        text = file.read_text(encoding="utf-8", errors="replace")
        name, source = _ID.search(text), _SOURCE.search(text)
        if name is not None:
            links = _LINK.findall(source[0]) if source is not None else []
            found.append(SkimmedFile(id=name[1], file=file, links=tuple(links)))
    return tuple(found)


def search(catalogue: Catalogue, words: Iterable[str]) -> tuple[Entry, ...]:
    """Return the entries that all words lead to.

    A word is a link, a number with or without its repository (``316``, ``#316``,
    ``cudnn-frontend#316``), or text of the entry, its kinds or its scenarios, whatever the case.
    """
    wanted = [word for word in words if word]
    return tuple(
        entry
        for entry in catalogue.entries
        if all(_meets(catalogue, entry, word) for word in wanted)
    )


def _meets(catalogue: Catalogue, entry: Entry, word: str) -> bool:
    if (asked := reference(word)) is not None:
        return any(same_report(asked, link) for link in entry.links)
    if word.startswith(("http://", "https://")):
        return word.rstrip("/") in entry.links
    return word.lower() in _text(catalogue, entry)


def _text(catalogue: Catalogue, entry: Entry) -> str:
    kinds = [catalogue.kinds[name] for name in entry.kinds]
    said = [entry.name, *entry.links, entry.what, entry.reason, entry.gpu, entry.state]
    said += [*entry.evidence, *entry.scenarios]
    said += [text for kind in kinds for text in (kind.name, kind.title, kind.sign)]
    return "\n".join(said).lower()


def reference(word: str) -> tuple[str, str, str] | None:
    """Read a link or a short form as (owner, repository, number), in lower case.

    Owner and repository are empty where they are not given; None for any other word.
    """
    match = _PASTED.match(word) or _SHORT.fullmatch(word)
    if match is None:
        return None
    owner, repository, number = match.groups(default="")
    return owner.lower(), repository.lower(), number


def same_report(asked: tuple[str, str, str], link: str) -> bool:
    """Tell whether a link is of the issue or pull request asked for: they share numbers."""
    found = reference(link)
    return found is not None and all(a in ("", b) for a, b in zip(asked, found, strict=True))


def citing(files: Iterable[SkimmedFile], words: Iterable[str]) -> Iterator[SkimmedFile]:
    """Yield the scenario files whose source holds a report that a word names."""
    asked = [found for word in words if (found := reference(word)) is not None]
    for file in files:
        if any(same_report(one, link) for one in asked for link in file.links):
            yield file
