"""Secrets in texts, by form: what is shown may be pasted into a public issue.

Every pattern is bounded, so that no line of a log takes long.
"""

from __future__ import annotations

import re

_NAMES = (
    r"(?:[\w-]{0,100}(?:token|secret|passw(?:or)?d|passwd|passphrase|credential|cookie|auth"
    r"|api-?key|(?:access|account|private|ssh)key|[\w-][_-]key"
    r"|(?-i:[A-Z0-9]_(?:PASS|PAT|PWD|JWT|SAS|API)))|pwd)[\w-]{0,20}"
)
"""Names whose values are secret; a bare ``key`` is a tensor in this field."""
_SCHEME = r"(?:(?:bearer|basic|digest|negotiate|token)\s{1,3})?"
_QUOTED = r"\\?\"[^\"\n]{1,400}|\\?'[^'\n]{1,400}"
_BARE = r"(?:[^\s\"',;&]|[,;&](?!\s|[\w.-]{1,60}=|$)){3,}"
_VALUE = rf"(?P<value>{_QUOTED}|{_BARE})"
_NAMED = re.compile(
    rf"(?i)(?<![\w-])(?P<name>{_NAMES})(?P<between>(?:\\?[\"'])?\s{{0,3}}(?:[=:]|\s\.{{3,80}}\s)\s{{0,3}}"
    rf"{_SCHEME}){_VALUE}"
)
"""``NAME=value``, ``name: value``, ``"name": "value"`` and ``name ...... value``."""
_OPTION = re.compile(
    rf"(?i)(?<![\w-])(?P<name>--{_NAMES})(?P<between>(?:=|\s{{1,3}})(?!-)){_VALUE}"
)
_HARMLESS = re.compile(
    r"(?i)key_(?:pos|size|rank|length)|keys?_reorder|tokens?_per|num_|max_tok|total_tok|tokenizer"
    r"|token_dispatcher|per_token|vocab|seqlens|seq_len|authors?\b|kv_|topk|top_k|query"
)
"""Names of this field that only look like secrets."""
_COUNTED = re.compile(r"(?i)(?:tokens?|keys?)$")
_COUNT = re.compile(r"\[?\d{1,9}[\])]?")
_EXPRESSION = re.compile(r"tensor\(|torch\.|[a-z_]{1,20}\[")
"""Values that are numbers of tokens, or Python."""

_FORMS = (
    # User and password in an address, whatever characters stand in the password.
    re.compile(
        r"(?P<name>://)(?:[^\s/:@\"'<>]{0,200}:(?!\d{1,5}/)[^\s\"'<>]{1,200}"
        r"|[^\s/\"'<>]{1,200})(?=@)"
    ),
    re.compile(r"(?i)(?P<name>[?&][\w.-]{0,40}(?:sig|signature|credential|key|token)=)[^&\s\"']+"),
    re.compile(r"(?i)(?P<name>\bhooks\.slack\.com/services/)[\w/-]+"),
    re.compile(r"(?i)(?P<name>\b(?:set-)?cookie[\"']?\s{0,3}:\s{0,3}[\"']?)[^\"'\n]{3,}"),
    re.compile(r"(?i)(?P<name>\bbearer\s{1,3})[\w.~+/=-]{8,}"),
    re.compile(r"(?i)(?P<name>\bpassw(?:or)?d\s{1,3}(?:is\s{1,3})?)(?![=:.\s]|is\b)[^\s\"']{3,}"),
    re.compile(r"(?P<name>(?<!\S)(?:-u|--user)[ =][\"']?[\w.@-]{1,60}:)[^\s\"']+"),
    re.compile(r"(?i)(?P<name>\blogin\b[^\n]{0,200}?\s-p[ =]?[\"']?)[^\s\"']+"),
    re.compile(
        r"(?P<name>)\b(?:hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}"
        r"|glpat-[\w-]{8,}|nvapi-[\w-]{8,}|sk-[\w-]{16,}|AKIA[A-Z0-9]{8,}|xox[abpr]-[\w-]{8,}"
        r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
    ),
    re.compile(r"(?P<name>)-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END[^\n]*|\Z)"),
)


def without_secrets(text: str, stand_in: str) -> str:
    """Return a text with the stand-in where secrets stood; names and quotes stay."""

    def named(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        quote = re.match(r"\\?[\"']|", value)
        assert quote is not None
        bare = value[quote.end() :]
        if (
            _HARMLESS.search(name)
            or (_COUNTED.search(name) and _COUNT.fullmatch(bare))
            or _EXPRESSION.match(bare)
        ):
            return found[0]
        return f"{name}{found['between']}{quote[0]}{stand_in}"

    for form in _FORMS:
        text = form.sub(lambda found: found["name"] + stand_in, text)
    return _OPTION.sub(named, _NAMED.sub(named, text))
