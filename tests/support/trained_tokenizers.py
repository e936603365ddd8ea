"""Byte-level and trained tokenizers, made once."""

from onward.data import Document
from onward.data.vocabularies import byte_tokenizer, train_vocabulary

CODE = (
    "def area(width, height):\n    # größe ≥ 0\n    return width * height\n\n\n"
    "class Shape:\n    def __init__(self, width=1, height=20):\n        self.width, self.height = width, height\n\n"
    "    def area(self):\n        if self.width > 0:\n\t\treturn area(self.width, self.height)\n        return None\n"
)
DOCUMENTS = [Document("code", CODE * 3), Document("prose", "The width of a shape, and its height: both count. " * 9)]
SIZE = 340
TOKENIZERS = {
    "bytes": byte_tokenizer(),
    "bpe": train_vocabulary(DOCUMENTS, SIZE),
    "sentencepiece": train_vocabulary(DOCUMENTS, SIZE, "sentencepiece"),
    "sentencepiece, bytes only": train_vocabulary(DOCUMENTS, 257, "sentencepiece"),
}


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]
