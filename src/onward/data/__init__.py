"""From documents to batches: corpora, vocabularies, tokens, segments and lanes, masked rows, questions."""

from .corpora import fingerprint_of, load_corpus
from .documents import SPLITS, Corpus, CorpusError, Document, LazyDocuments, split_documents
from .files import load_documents, parse_json, read_text
from .hub import load_hub_data_set
from .named import CORPORA, corpus, installed_code, pg19, pg19_all, shakespeare, wikitext_103
from .segments import Lanes, Segments, collate
from .tokens import TokenizedDocument, tokenize
from .vocabularies import byte_tokenizer, load_tokenizer, train_vocabulary

__all__ = [
    "CORPORA",
    "SPLITS",
    "Corpus",
    "CorpusError",
    "Document",
    "Lanes",
    "LazyDocuments",
    "Segments",
    "TokenizedDocument",
    "byte_tokenizer",
    "collate",
    "corpus",
    "fingerprint_of",
    "installed_code",
    "load_corpus",
    "load_documents",
    "load_hub_data_set",
    "load_tokenizer",
    "parse_json",
    "pg19",
    "pg19_all",
    "read_text",
    "shakespeare",
    "split_documents",
    "tokenize",
    "train_vocabulary",
    "wikitext_103",
]
