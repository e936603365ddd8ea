"""`onward inspect`"""

from __future__ import annotations

from command_line import run


def test_inspect_tells_where_the_memory_goes(place):
    output = run(f"inspect {place}/run --text {place}/texts/0.txt")
    assert "seam taken at layers" in output and "attention that goes to the memory" in output


def test_inspect_blocks(place, blocks):
    output = run(f"inspect {blocks} --text {place}/texts/0.txt --max-tokens 200")
    for shown in (
        "4 states at layer 2, gate fixed:skip",
        "ablated",
        "attention gate",
        "taken in",
        "spread over states",
        "effective",
        "128 to 199",
    ):
        assert shown in output, output
