"""Kernels on a page: escaped, bounded, highlighted. Whatever a policy wrote is shown, and nothing of it is obeyed."""

from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

MAX_CHARACTERS = 20_000
"""A kernel longer than this is cut; colouring stops being instant there too."""

_formatter = HtmlFormatter(nowrap=True, classprefix="k-")


def code_block(source: str) -> str:
    """A <pre> with the source in it."""
    shown = visible(source[:MAX_CHARACTERS])
    cut = f"\n… {len(source) - MAX_CHARACTERS} more characters" if len(source) > MAX_CHARACTERS else ""
    return f'<pre class="code"><code>{highlight(shown, PythonLexer(), _formatter)}{escape(cut)}</code></pre>'


def visible(text: str) -> str:
    """Control characters and writing-direction overrides as a mark, so that what is read is what runs."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


CSS = """
.k-k,.k-kn,.k-kd,.k-kc,.k-ow{color:var(--code-keyword)}
.k-s,.k-s1,.k-s2,.k-sd,.k-sa,.k-si,.k-se{color:var(--code-string)}
.k-c,.k-c1,.k-cm{color:var(--code-comment);font-style:italic}
.k-mi,.k-mf,.k-mh{color:var(--code-number)}
.k-nf,.k-nc,.k-fm{color:var(--code-name)}
.k-nd{color:var(--code-decorator)}
"""
