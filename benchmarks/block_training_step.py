"""A training step of the block-recurrent model against its peers, and against its own baselines.

The peers are not dependencies; `make bench` installs them. A missing one is reported and left out.

Time: all models take turns in one process, and a ratio is the median of each round's ratio, since a machine's speed
drifts more between rounds than within one. Memory: the peak of each model alone in its own process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from common import peak_megabytes, verdict
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM

WIDTH, DEPTH, HEADS, LENGTH, BATCH, BLOCK, VOCABULARY, ROUNDS = 256, 6, 4, 1024, 2, 128, 20_000, 15


Loss = Callable[[Tensor], Tensor]


def ours(preset: str) -> tuple[nn.Module, Loss]:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "window": BLOCK}
    # Like the peers: untied embeddings, for as many parameters, and no dropout.
    config = BlockRecurrentConfig.preset(preset, **sizes, vocab_size=VOCABULARY, tie_word_embeddings=False, dropout=0.0)
    model = BlockRecurrentForCausalLM(config).train()
    return model, lambda ids: model(ids, labels=ids).loss


def lucidrains(_: str) -> tuple[nn.Module, Loss]:
    from block_recurrent_transformer_pytorch import BlockRecurrentTransformer

    model = BlockRecurrentTransformer(
        num_tokens=VOCABULARY,
        dim=WIDTH,
        depth=DEPTH,
        dim_head=WIDTH // HEADS,
        heads=HEADS,
        max_seq_len=LENGTH,
        block_width=BLOCK,
        recurrent_layers=(5,),
    )
    return model, lambda ids: model(ids, return_loss=True)[0]


def x_transformers(_: str) -> tuple[nn.Module, Loss]:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=WIDTH, depth=DEPTH, heads=HEADS, attn_dim_head=WIDTH // HEADS, attn_flash=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=LENGTH, attn_layers=layers))
    return model, lambda ids: model(ids)


def gpt2(_: str) -> tuple[nn.Module, Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=DEPTH,
        n_head=HEADS,
        n_positions=LENGTH,
        tie_word_embeddings=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = GPT2LMHeadModel(config).train()
    return model, lambda ids: model(ids, labels=ids).loss


US, BASELINE, FEEDBACK = "onward Rec:fixed:skip", "onward Slide, one more layer", "onward Feedback:fixed:skip"
PEER = "lucidrains block-recurrent 0.4.4"
MODELS: dict[str, tuple[Callable[[str], tuple[nn.Module, Loss]], str]] = {
    US: (ours, "Rec:fixed:skip"),
    BASELINE: (ours, "Slide:13L"),
    FEEDBACK: (ours, "Feedback:fixed:skip"),
    PEER: (lucidrains, ""),
    "x-transformers": (x_transformers, ""),
    "GPT-2, sdpa": (gpt2, ""),
}


def make(name: str) -> tuple[Callable[[], None], int, Loss]:
    """A function that makes a step, the number of parameters, and the loss."""
    torch.manual_seed(0)
    kind, preset = MODELS[name]
    model, loss = kind(preset)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, 1e-4, fused=True)  # the fastest one, for all models
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))

    def step() -> None:
        optimizer.zero_grad()
        loss(ids).backward()
        optimizer.step()

    return step, sum(p.numel() for p in parameters), loss


def matrix_product_speed() -> float:
    """Median GFLOPS of a large square product."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / statistics.median(times) / 1e9


def operations(name: str) -> float:
    """GFLOP in the matrix products of a step, with plain attention: torch counts fused attention on CPUs as 0."""
    _, _, loss = make(name)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss(ids).backward()
    return counter.get_total_flops() / 1e9


def memory(name: str) -> float:
    run = [sys.executable, __file__, "--memory", name]
    return json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        step, _, _ = make(sys.argv[2])
        for _ in range(4):
            step()
        print(json.dumps(peak_megabytes()))
        return
    steps = {}
    for name in MODELS:
        try:
            steps[name] = make(name)
        except ImportError as error:
            print(f"{name}: left out, {error}")
    for step, _, _ in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    speeds = []
    for _ in range(ROUNDS):
        speeds.append(matrix_product_speed())
        for name, (step, _, _) in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(values) for name, values in times.items()}

    def against(other: str, name: str = US) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))

    megabytes = {name: memory(name) for name in steps}
    print(f"{torch.get_num_threads()} threads, {BATCH} x {LENGTH} tokens, {VOCABULARY} ids, median of {ROUNDS} rounds")
    for name, (_, parameters, _) in steps.items():
        print(f"{name:34} {1000 * seconds[name]:6.0f} ms  {megabytes[name]:6.0f} MiB  {parameters:,} parameters")
    if PEER in steps:
        verdict("step against lucidrains'", against(PEER), 0.7)
        verdict("memory against lucidrains'", megabytes[US] / megabytes[PEER], 0.9)
        verdict("lucidrains' parameters against ours", steps[PEER][1] / steps[US][1], 1.0)
    verdict("Rec:fixed:skip against Slide with one more layer", against(BASELINE), 1.0)
    verdict("Feedback:fixed:skip against the same", against(BASELINE, FEEDBACK), 1.35)
    work = operations(US)
    slower = statistics.median(speed * spent / work for speed, spent in zip(speeds, times[US], strict=True))
    print(f"matrix products of 2048 x 2048: {statistics.median(speeds):.0f} GFLOPS; our step: {work / seconds[US]:.0f}")
    verdict("matrix products' speed against our step's", slower, round(1 / 0.75, 3))


if __name__ == "__main__":
    main()
