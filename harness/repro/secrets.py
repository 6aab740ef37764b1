"""Secrets in texts, by form: what is shown may be pasted into a public issue.

Every pattern is bounded, so that no line of a log takes long.
"""

from __future__ import annotations

import re

_NAMES = (
    r"(?:(?:[\w-]{0,100}(?:token|secret|passw(?:or)?d|passwd|passphrase|credential|cookie|auth"
    r"|api[ -]?key|(?:access|account|private|secret|ssh)[ ]?key|[\w-][_-]key|wandbkey"
    r"|(?:db|user|root|admin|ssh|sudo|pg|smtp|ftp)_?pass(?![a-z])"
    r"|(?-i:[A-Z0-9]{2}KEY|[A-Z0-9]_(?:PASS|PAT|PWD|JWT|SAS|API)))|pwd)[\w-]{0,20}|pw|pass)"
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
    r"|token_dispatcher|per_token|vocab|seqlens|seq_len|authors?\b|kv_|topk|top_k|query|-stdin$"
)
"""Names that only look like secrets: those of this field, and options that take no value."""
_COUNTED = re.compile(r"(?i)(?:tokens?|keys?)$")
_COUNT = re.compile(r"\[?\d{1,9}[\])]?")
_EXPRESSION = re.compile(r"tensor\(|torch\.|[a-z_]{1,20}\[")
"""Values that are numbers of tokens, or Python."""
_MEASURED = re.compile(r"(?i)[-+]?[\d.,]{1,20}(?:[munμ]?s|%|[kmgt]i?b|x)?[\])}]{0,3}")
_OF_PASSES = re.compile(
    r"(?i)true|false|none|null|(?:layer|step|rank|stage|phase|iter|epoch|(?:micro)?batch)[\w/-]*"
)
"""Values of a ``pass`` that is a run over something."""
_PASS = re.compile(r"(?=.{0,200}[\d!@#$%^*])(?=.{0,200}[A-Za-z]).{6,}")
_RUNS = re.compile(
    r"(?i)\b(?:forward|backward|fwd|bwd|first|second|third|next|last|this|each|every|one|per"
    r"|compiler?|optimizer)[ -]$"
)
"""Words before a ``pass`` that is a run over something."""

_WORD = r"(?:(?<=\")[^\"\n]{1,400}|(?<=')[^'\n]{1,400}|[^\s\"'\\]+)"
"""A word of the shell, the quote that may stand before it matched already."""
_RANDOM = r"(?=[\w.~+/=-]{0,80}?\d|[\w.~+/=-]{20})"
"""No word of prose: with a digit, or long."""
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
    re.compile(
        r"(?i)(?P<name>\b(?:api|access|account|private|secret)[ _-]?key\s{1,3}is\s{1,3}\\?[\"']?)"
        rf"{_RANDOM}[^\s\"']{{3,}}"
    ),
    re.compile(
        rf"(?i)(?P<name>\btoken\s{{1,3}}\\?[\"'])(?![\w-]{{0,60}}token){_RANDOM}[\w.~+/=-]{{8,400}}"
        r"(?=\\?[\"'])"
    ),
    re.compile(
        r"(?i)(?P<name>\buser(?:name)?\b[^\n]{0,100}?\bpass\s{0,3}[=:]\s{0,3}[\"']?)"
        rf"(?!\d[\d.,]{{0,20}}\s?[a-zμ%]{{0,3}}(?!\S)){_WORD}"
    ),
    # Commands that take a secret as a word, or read it from a pipe.
    re.compile(rf"(?P<name>(?<!\S)(?:-u|--user)[ =][\"']?[\w.@-]{{1,60}}:){_WORD}"),
    re.compile(rf"(?P<name>\b(?:login|sshpass)\b[^\n]{{0,200}}?\s-p[ =]?\\?[\"']?){_WORD}"),
    re.compile(
        rf"(?P<name>\b(?:mysql|mariadb)[\w-]{{0,20}}\s[^\n]{{0,200}}?(?<=\s)-p[\"']?){_WORD}"
    ),
    re.compile(
        r"(?P<name>\bwandb\s{1,3}login(?:\s{1,3}--?[\w=-]{1,40}){0,4}\s{1,3}[\"']?)"
        rf"{_RANDOM}[\w.~+/=-]{{8,}}"
    ),
    re.compile(
        r"(?P<name>\blogin\((?:[^\n)]{0,200}?\b(?:key|token|password)\s{0,3}=)?\s{0,3}\\?[\"'])"
        r"[^\"'\n\\]{3,}"
    ),
    re.compile(
        rf"(?i)(?P<name>(?:passw|secret|token|login)[^\n]{{0,200}}?<<<\s{{0,3}}[\"']?){_WORD}"
    ),
    re.compile(
        r"(?P<name>\b(?:echo|printf)\s{1,3}(?:-\w{1,3}\s{1,3})?(?:[\"']?%s(?:\\n)?[\"']?\s{1,3})?"
        r"[\"']?)(?:(?<=\")[^\"\n]{1,400}|(?<=')[^'\n]{1,400}|[^\s\"'|]{1,400})"
        r"(?=[\"']?\s{0,3}\|[^\n]{0,200}?(?:-stdin|--with-token|sudo\s{1,3}-S)\b)"
    ),
    # A key of wandb has 40 hexadecimal digits, as a commit has.
    re.compile(
        r"(?i)(?P<name>(?:\bwandb\b[^\n]{0,200}?|\bkey\b[^\w\n]{1,8}(?:is\s{1,3}\W?)?))"
        r"(?<!\w)(?<!commit )(?<!commit: )(?<!commit=)[0-9a-f]{40}(?!\w)"
    ),
    re.compile(
        r"(?P<name>)\b(?:hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}"
        r"|gl(?:pat|rt|dt|ptt|cbt)-[\w-]{8,}|nvapi-[\w-]{8,}|sk-[\w-]{16,}|[rs]k_(?:live|test)_\w{8,}"
        r"|wandb_v1_\w{8,}|A(?:KIA[A-Z0-9]{8,}|SIA[A-Z0-9]{12,})|AIza[\w-]{8,}|ya29\.[\w-]{8,}"
        r"|xox[abeprs]-[\w-]{8,}|xapp-[\w-]{8,}|npm_[A-Za-z0-9]{16,}|dckr_[po]at_[\w-]{8,}"
        r"|pypi-(?=[\w-]{0,200}?[A-Z\d])[\w-]{16,}|hv[sbr]\.[\w-]{8,}"
        r"|SG\.(?=[\w-]{0,80}?\d)[\w-]{16,}(?:\.[\w-]{8,})?"
        r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
    ),
    re.compile(r"(?P<name>)-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END[^\n]*|\Z)"),
)


def without_secrets(text: str, stand_in: str) -> str:
    """Return a text with the stand-in where secrets stood; names and quotes stay."""

    def named(found: re.Match[str]) -> str:
        value = found["value"]
        quote = re.match(r"\\?[\"']|", value)
        assert quote is not None
        if _is_harmless(found, value[quote.end() :]):
            return found[0]
        return f"{found['name']}{found['between']}{quote[0]}{stand_in}"

    for form in _FORMS:
        text = form.sub(lambda found: found["name"] + stand_in, text)
    return _OPTION.sub(named, _NAMED.sub(named, text))


def _is_harmless(found: re.Match[str], bare: str) -> bool:
    """Whether a value is none of a secret, for all its name."""
    name = found["name"]
    if name.lower() in ("pass", "pw"):
        return _is_of_passes(found, bare)
    return bool(
        _HARMLESS.search(name)
        or (_COUNTED.search(name) and _COUNT.fullmatch(bare))
        or _EXPRESSION.match(bare)
    )


def _is_of_passes(found: re.Match[str], bare: str) -> bool:
    """Whether ``pass`` or ``pw`` is a run over something or a number, not a password."""
    if any(form.fullmatch(bare) for form in (_MEASURED, _OF_PASSES)) or _EXPRESSION.match(bare):
        return True
    if found["name"].lower() == "pw":
        return False
    before = found.string[max(0, found.start() - 12) : found.start()]
    return _RUNS.search(before) is not None or _PASS.match(bare) is None
