"""Passwords and tokens, taken out of text that is shown, logged or stored."""

import re
from urllib.parse import unquote

_HIDDEN = "***"
# Whatever stands between these and the next space or separator.
_PATTERNS = (
    (re.compile(r"(://[^/\s:@]*:)[^\s]*(?=@)"), rf"\1{_HIDDEN}"),  # scheme://user:PASSWORD@host
    (
        re.compile(r"(?i)\b((?:password|passwd|passfile|token|secret|api[_-]?key)\s*=\s*)('[^']*'|[^\s&;,'\"]+)"),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]+"), rf"\1{_HIDDEN}"),
    (re.compile(r"(--(?:token|password)(?:\s+|=))('[^']*'|\S+)"), rf"\1{_HIDDEN}"),
)


def redacted(text: str, *secrets: str | None) -> str:
    """Text without the passwords and tokens in it.

    Args:
        text: Anything that is about to be shown, logged or stored.
        *secrets: Secrets that are known, in the form in which a URL has them.

    Returns:
        The text, with *** where a secret was.

    Examples:
        >>> redacted("postgresql://ann:s3cret@db.example/items failed")
        'postgresql://ann:***@db.example/items failed'
        >>> redacted("aleator serve index --token abcdefgh")
        'aleator serve index --token ***'
    """
    for secret in secrets:
        for form in {secret, unquote(secret)} if secret else ():
            text = text.replace(form, _HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
