"""Text as it comes: tokens become characters as soon as no later token can change them."""

from __future__ import annotations

from typing import Any

UNFINISHED = "�"  # what a tokenizer shows for bytes of a character that is not complete


class TextStream:
    """Decodes a window: what was told last gives the context in which the new tokens are read."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.context, self.told = 0, 0  # where the window begins; tokens told so far

    def add(self, token: int) -> str:
        """The characters that this token makes certain; often none."""
        self.tokens.append(token)
        return self._piece(hold=True)

    def end(self) -> str:
        """What was held back."""
        return self._piece(hold=False)

    def _piece(self, hold: bool) -> str:
        before = self._text(self.tokens[self.context : self.told])
        after = self._text(self.tokens[self.context :])
        if len(after) <= len(before) or (hold and after.endswith(UNFINISHED)):
            return ""
        self.context, self.told = self.told, len(self.tokens)
        return after[len(before) :]

    def _text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))
