"""From documents to batches.

    documents    load_corpus: a name, path or Hub data set -> Documents in three splits     corpora, named, files, hub
    tokens       tokenize: Documents -> TokenizedDocuments, in memory or in files           tokens, token_files
    segments     Segments, one document after another, or Lanes, many side by side          segments
    or rows      PackedTexts: rows of equal length with hidden tokens                       masked_rows
    batches      collate and collate_rows: padded tensors, with labels and masks            segments, masked_rows

Vocabularies are trained and loaded in `vocabularies`. Questions over paragraphs take another way, with the same files:
`records` (any file -> records), `question_files` (any form -> one record), `questions` (-> tokens with answers).
"""

from ..utils.files import DataError
from ..utils.safe_json import parse_json
from .corpora import fingerprint_of, load_corpus
from .documents import SPLITS, Corpus, Document, LazyDocuments, split_documents
from .files import load_documents
from .hub import load_hub_data_set
from .named import CORPORA, corpus, installed_code, pg19, pg19_all, shakespeare, wikitext_103
from .records import read_text
from .segments import Lanes, Segments, collate
from .tokens import TokenizedDocument, tokenize
from .vocabularies import byte_tokenizer, load_tokenizer, train_vocabulary

CorpusError = DataError

__all__ = [
    "CORPORA",
    "SPLITS",
    "Corpus",
    "CorpusError",
    "DataError",
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
