"""A folder or archive to hand upstream: script, scenario, versions, evidence, and a text to paste.

Nothing in it says who made it or where. The same input gives the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from harness.record.codec import dumps, to_jsonable
from harness.record.environment import Environment
from harness.record.files import safe_name, write_text
from harness.repro.issue_text import issue_text
from harness.repro.redact import Redactor, redactor_for
from harness.repro.refusals import ExportRefusedError
from harness.repro.script import script_name, script_text
from harness.repro.source import Exported
from harness.scenario.spec import Scenario
from harness.scenario.writing import scenario_to_yaml

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]*")
_LONGEST = 100
MANIFEST = "manifest.json"
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")


class BundleError(ValueError):
    """The bundle cannot be written there; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """Files of a bundle.

    Attributes:
        name: Folder in the archive.
        files: File name to text, the manifest included.
        why_no_script: Why there is no script; empty where there is one.
    """

    name: str
    files: dict[str, str]
    why_no_script: str = ""


def make_bundle(exported: Exported, environment: Environment) -> Bundle:
    """Build the files.

    Args:
        exported: What to hand on.
        environment: Of this machine, for a scenario that no run is attached to.
    """
    environment = exported.environment or environment
    redactor = _redactor(exported, environment)
    exported = replace(exported, scenario=_redacted(exported.scenario, redactor))
    scenario, result = exported.scenario, exported.result
    name = script_name(scenario)
    script, why = None, ""
    try:
        script = script_text(scenario, result=result)
    except ExportRefusedError as error:
        why = str(error)
    text = issue_text(
        exported,
        environment,
        redact=redactor.text,
        script=name if script else None,
        why_no_script=why.rstrip("."),
    )
    files = {
        "issue.md": text,
        "scenario.yaml": scenario_to_yaml(scenario, inline_model=True),
        "environment.json": _json(redactor.value(to_jsonable(environment))),
    }
    if script is not None:
        files[name] = script
    if result is not None:
        evidence = {"id": scenario.id, "content_hash": result.content_hash}
        evidence |= {"outcome": str(result.outcome), "attempt": to_jsonable(result.last)}
        files["evidence.json"] = _json(redactor.value(evidence))
    files[MANIFEST] = _manifest(scenario.id, scenario.content_hash, files)
    stem = PurePosixPath(name).stem.removeprefix("repro_")
    return Bundle(name=f"dsa-repro-{stem}", files=files, why_no_script=why)


def _redacted(scenario: Scenario, redactor: Redactor) -> Scenario:
    """The scenario with its words redacted; what is run holds no text of anybody's."""
    text = redactor.text
    return replace(
        scenario,
        # Stand-ins are words in an id.
        id=text(scenario.id).replace("<", "").replace(">", ""),
        summary=text(scenario.summary),
        source=tuple(map(text, scenario.source)),
        tags=tuple(text(tag).replace("<", "").replace(">", "") for tag in scenario.tags),
        known=tuple(replace(rule, link=text(rule.link)) for rule in scenario.known),
    )


def _redactor(exported: Exported, environment: Environment) -> Redactor:
    hosts = [environment.host]
    if exported.result is not None:
        hosts += [rank.host for rank in exported.result.last.ranks]
    folders = {}
    if environment.megatron_path:
        folders[environment.megatron_path] = "<path>/megatron"
    return redactor_for(hosts, folders)


def _manifest(scenario_id: str, content_hash: str, files: dict[str, str]) -> str:
    entries = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, text in sorted(files.items())
        for data in [_bytes(text)]
    }
    return _json({"scenario": scenario_id, "content_hash": content_hash, "files": entries})


def _json(value: object) -> str:
    return json.dumps(json.loads(dumps(value)), indent=1, sort_keys=True) + "\n"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def write_bundle(bundle: Bundle, out: Path) -> Path:
    """Write a bundle as a folder, or as an archive where the name ends in ``.tar.gz``.

    Raises:
        BundleError: when there is something else already, or it cannot be written.
    """
    try:
        if out.name.endswith(ARCHIVE_SUFFIXES):
            out.parent.mkdir(parents=True, exist_ok=True)
            temporary = out.with_name(f".{out.name}.tmp")
            temporary.write_bytes(archive_bytes(bundle))
            temporary.replace(out)
            return out
        if out.exists() and not out.is_dir():
            raise BundleError(f"--out {out}: expected a new folder, found a file")
        if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).exists():
            raise BundleError(f"--out {out}: this folder holds other files; choose a new one")
        for name, text in bundle.files.items():
            write_text(out / safe_file(name), text)
    except OSError as error:
        raise BundleError(f"--out {out}: {error.strerror or error}; choose another") from error
    return out


def archive_bytes(bundle: Bundle) -> bytes:
    """Return the archive; no time, owner or order of creation is in it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in sorted(bundle.files.items()):
            data = _bytes(text)
            entry = tarfile.TarInfo(f"{safe_file(bundle.name)}/{safe_file(name)}")
            entry.size, entry.mode, entry.mtime = len(data), 0o644, 0
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def safe_file(name: str) -> str:
    """Return a name that is one part of a path, whatever was asked for."""
    if _SAFE.fullmatch(name) and len(name) <= _LONGEST:
        return name
    return safe_name(name)[:_LONGEST]
