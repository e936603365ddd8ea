"""Generation with a block-recurrent model: speed against GPT-2 with its KV cache, and cost up to 100,000 tokens.

The comparison uses `generate` itself. The long run calls the model token by token, as `generate` does, but without
`generate`, which keeps all ids in one growing tensor.
"""

from __future__ import annotations

import statistics
import time

import torch
from common import megabytes_held, verdict
from transformers import GPT2Config, GPT2LMHeadModel

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM

VOCABULARY, PROMPT, NEW, ROUNDS, FAR = 20_000, 512, 128, 15, 100_000


def generate(model, ids: torch.Tensor, count: int) -> float:
    """Seconds per token by transformers' own `generate`, greedy."""
    start = time.perf_counter()
    model.generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
    return (time.perf_counter() - start) / count


@torch.no_grad()
def by_distance(model: BlockRecurrentForCausalLM) -> dict[int, tuple[float, float]]:
    """Seconds per token and MiB held, by the number of tokens so far. Measured as CPU time of one thread, since other
    processes interfere during a run this long."""
    torch.set_num_threads(1)
    token, state, found = torch.zeros(1, 1, dtype=torch.long), None, {}
    start, last = time.process_time(), 0
    for count in range(1, FAR + 1):
        output = model(token, state=state)
        state, token = output.state, output.logits.argmax(-1)
        if count in (1000, 2000, 10_000, 50_000) or count == FAR:
            now = time.process_time()
            found[count] = (now - start) / (count - last), megabytes_held()
            start, last = now, count
    return found


def main() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4}
    ours = BlockRecurrentForCausalLM(
        BlockRecurrentConfig.preset("Rec:fixed:skip", **sizes, window=128, vocab_size=VOCABULARY)
    ).eval()
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=256, n_layer=6, n_head=4, n_positions=2048)).eval()
    ids = torch.randint(0, VOCABULARY, (1, PROMPT))
    times: dict[str, list[float]] = {"onward Rec:fixed:skip": [], "GPT-2 with its cache": []}
    for _ in range(ROUNDS):
        for name, model in zip(times, (ours, gpt2), strict=True):
            times[name].append(generate(model, ids, NEW))
    cost = {name: statistics.median(values) for name, values in times.items()}
    for name, seconds in cost.items():
        print(
            f"{name}: {1000 * seconds:.2f} ms per token after a prompt of {PROMPT}, {torch.get_num_threads()} threads"
        )
    # The median of each round's ratio: a machine's speed drifts more between rounds than within one.
    verdict("generation against GPT-2", statistics.median(a / b for a, b in zip(*times.values(), strict=True)), 1.0)
    found = by_distance(ours)
    for count, (seconds, held) in found.items():
        print(f"up to token {count:6}: {1000 * seconds:.2f} ms per token, {held:.0f} MiB held")
    verdict(f"a token near {FAR} against one near 2000", found[FAR][0] / found[2000][0], 1.1)
    verdict(f"memory at {FAR} against 2000", found[FAR][1] / found[2000][1], 1.05)


if __name__ == "__main__":
    main()
