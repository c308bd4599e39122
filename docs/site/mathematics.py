"""Formulas as MathML, which browsers draw themselves: no script and no fonts from elsewhere."""

import html
import re

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
_BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.S)


def on_page_content(content, page, config, files):
    """Replace what pymdownx.arithmatex marked as LaTeX by MathML."""
    content = _INLINE.sub(lambda match: convert(html.unescape(match.group(1)), display="inline"), content)
    return _BLOCK.sub(lambda match: convert(html.unescape(match.group(1)), display="block"), content)
