"""The pages of the documentation and their code blocks, for the tests that run them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "core/*.md", "callbacks/*.md", "datamodules/*.md", "plugins/*/*.md", "docs/*.md")
    for path in ROOT.glob(pattern)
)
_BLOCK = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<reason>[^\n]*?) ?-->\n+)?"
    r"^(?P<indent>[ ]*)```(?P<language>[\w-]*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: the page, relative to the checkout.
        line: where the block begins.
        language: the first word after the fence.
        title: the file that the block stands for (``title="train.py"`` after the language), or empty.
        text: its content.
        reason: why it is not run, from ``<!-- not run: REASON -->`` before it; None where it is run.
    """

    page: str
    line: int
    language: str
    title: str
    text: str
    reason: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in their order."""
    text = page.read_text()
    return [
        Block(
            page=name_of(page),
            line=text.count("\n", 0, found.start("language")) + 1,
            language=found["language"],
            title=title[1] if (title := re.search(r'title="([^"]+)"', found["info"])) else "",
            text=textwrap.dedent(found["text"]),
            reason=found["reason"],
        )
        for found in _BLOCK.finditer(text)
    ]
