"""`onward embed`"""

from __future__ import annotations

from command_line import WORDS, run
from safetensors.torch import load_file


def test_embed_encoders_and_decoders(place):
    texts = f"{place}/texts/0.txt {place}/texts/1.txt"
    run(f"embed {place}/encoder {texts} --window 32 --overlap 8 --tokens --out {place}/e.safetensors")
    run(f"embed {place}/run {texts} --out {place}/d.safetensors")
    encoded, decoded = load_file(place / "e.safetensors"), load_file(place / "d.safetensors")
    assert encoded["0.txt.document"].shape == decoded["0.txt.document"].shape == (32,)
    assert encoded["1.txt.tokens"].shape == (len(WORDS * 9), 32)
