"""One window-recurrent model called from several threads: every call gives what it gives alone, bit for bit."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier, Event, Thread, local
from typing import Any

import pytest
import torch
from tiny_models import recurrent_variant, tokens
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from onward import add_recurrence

WINDOW = 5
Job = Callable[[], list[Tensor]]


@pytest.fixture(autouse=True)
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def models() -> dict[str, Any]:
    decoder = recurrent_variant("llama", "spans", overlap=1)
    learning = recurrent_variant("gpt2", "paper")
    learning.gradient_checkpointing_enable()
    learning.train()
    for module in learning.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return {
        "decoder": decoder,
        "same backbone": add_recurrence(decoder.backbone, window=4, carrier="spans", vectors=3),
        "learning": learning,
        "classifier": recurrent_variant("bert", "pooled", "sequence-classification"),
        "labeller": recurrent_variant("mistral", "spans", "token-classification"),
    }


def jobs(model: dict[str, Any]) -> dict[str, Job]:
    ids = tokens(2, 13)
    decoder, classifier = model["decoder"], model["classifier"]
    state = decoder(ids).state

    def learn() -> list[Tensor]:
        with torch.enable_grad():
            loss = model["learning"](ids, labels=ids).loss
            named = [p for p in model["learning"].parameters() if p.requires_grad]
            return [loss, *(g for g in torch.autograd.grad(loss, named, allow_unused=True) if g is not None)]

    def plain() -> list[Tensor]:
        with decoder.recurrence_disabled():
            return [decoder(ids).logits, decoder.backbone(ids).logits, decoder.generate(ids, max_new_tokens=2)]

    return {
        "read": lambda: [decoder(ids).logits, decoder(ids, labels=ids).loss],
        "go on": lambda: [decoder(ids, state=state).logits],
        "generate": lambda: [decoder.generate(ids, max_new_tokens=4, do_sample=False)],
        "plain": plain,
        "backbone": lambda: [decoder.backbone(ids).logits],
        "embed": lambda: [decoder.embed(ids).documents, classifier.embed(ids).tokens],
        "same backbone": lambda: [model["same backbone"](ids).logits],
        "classify": lambda: [classifier(ids, labels=torch.tensor([0, 1])).logits],
        "label": lambda: [model["labeller"](ids).logits],
        "learn": learn,
    }


def assert_undamaged(models: dict[str, Any]) -> None:
    for model in models.values():
        assert model.backbone.config._attn_implementation == "sdpa"
        for module in model.modules():
            assert "forward" not in module.__dict__ and not module._forward_hooks and not module._forward_pre_hooks
        copy.deepcopy(model)


def run_in_threads(threads: int, calls: int) -> None:
    model = models()
    work = jobs(model)
    with torch.no_grad():
        expected = {name: job() for name, job in work.items()}
    together = Barrier(threads)

    def worker(number: int) -> list[str]:
        chance, wrong = Random(number), []
        together.wait()
        with torch.no_grad():
            for _ in range(calls):
                name = chance.choice(list(work))
                if not all(torch.equal(a, b) for a, b in zip(work[name](), expected[name], strict=True)):
                    wrong.append(name)
        return wrong

    with ThreadPoolExecutor(threads) as pool:
        assert [wrong for wrong in pool.map(worker, range(threads)) if wrong] == []
    assert_undamaged(model)


def test_calls_from_threads_are_calls_one_after_the_other() -> None:
    run_in_threads(threads=4, calls=8)


@pytest.mark.slow
def test_eight_threads_with_a_hundred_calls_each() -> None:
    run_in_threads(threads=8, calls=100)


@torch.no_grad()
def test_an_error_in_one_thread_leaves_the_others_right() -> None:
    model = models()
    decoder, ids = model["decoder"], tokens(2, 13)
    expected = decoder(ids).logits
    this_thread = local()

    def break_off(*_: Any) -> None:
        if getattr(this_thread, "fails", False):
            raise ArithmeticError("in the middle of the backbone")

    hook = decoder.get_output_embeddings().register_forward_pre_hook(break_off)
    with ThreadPoolExecutor(4) as pool:

        def fail(_: int) -> None:
            this_thread.fails = True
            try:
                with pytest.raises(ArithmeticError, match="in the middle"):
                    decoder(ids)
            finally:
                this_thread.fails = False

        failing = [pool.submit(fail, n) for n in range(10)]
        found = list(pool.map(lambda _: decoder(ids).logits, range(10)))
        for future in failing:
            future.result()
    hook.remove()
    assert all(torch.equal(logits, expected) for logits in found)
    assert_undamaged(model)


@torch.no_grad()
def test_recurrence_is_switched_off_for_the_thread_that_asked() -> None:
    model, ids = recurrent_variant("gpt2"), tokens(1, 12)
    with_memory = model(ids).logits
    inside, done, found = Event(), Event(), []

    def other() -> None:
        with model.recurrence_disabled():
            inside.set()
            done.wait(10)
            found.append(model(ids).logits)

    thread = Thread(target=other)
    thread.start()
    assert inside.wait(10)
    assert torch.equal(model(ids).logits, with_memory)
    with model.recurrence_disabled(), model.recurrence_disabled():
        plain = model(ids).logits
    assert torch.equal(model(ids).logits, with_memory)
    done.set()
    thread.join()
    assert torch.equal(plain, model.backbone(ids).logits) and not torch.equal(plain, with_memory)
    with torch.no_grad():
        assert torch.allclose(found[0], plain)


@torch.no_grad()
def test_one_model_is_switched_off_and_not_another() -> None:
    model, other, ids = recurrent_variant("gpt2"), recurrent_variant("gpt2", "spans"), tokens(1, 12)
    expected = other(ids).logits
    with model.recurrence_disabled():
        assert torch.equal(other(ids).logits, expected)


@torch.no_grad()
def test_backbones_that_share_a_configuration_share_the_lock() -> None:
    config = GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    pair = [add_recurrence(GPT2LMHeadModel(config).eval(), carrier="spans", window=8, vectors=4) for _ in range(2)]
    assert pair[0].backbone.config is pair[1].backbone.config
    ids = tokens(1, 30)
    expected = [model(ids).logits for model in pair]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: pair[n % 2](ids).logits, range(80)))
    assert all(torch.equal(logits, expected[n % 2]) for n, logits in enumerate(found))
    assert config._attn_implementation == "sdpa"
