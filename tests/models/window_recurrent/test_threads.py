"""One window-recurrent model called from several threads: every call gives what it gives alone, bit for bit, and
changes nothing about the model.

There are no locks: calls run side by side, also those of models that share a backbone or its configuration.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier, Event, Thread, local
from typing import Any

import pytest
import torch
from anatomy import anatomy
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
        "its slots": add_recurrence(decoder.backbone, window=4, carrier="selected", slots=5),
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
        "its slots": lambda: [model["its slots"](ids).logits, model["its slots"].generate(ids, max_new_tokens=3)],
        "classify": lambda: [classifier(ids, labels=torch.tensor([0, 1])).logits],
        "label": lambda: [model["labeller"](ids).logits],
        "learn": learn,
    }


def anatomies(models: dict[str, Any]) -> dict[str, Any]:
    return {name: anatomy(model) for name, model in models.items()}


def run_in_threads(threads: int, calls: int) -> None:
    model = models()
    work = jobs(model)
    with torch.no_grad():
        expected = {name: job() for name, job in work.items()}
    before = anatomies(model)
    together = Barrier(threads)

    def worker(number: int) -> list[str]:
        chance, wrong = Random(number), []
        together.wait()
        with torch.no_grad():
            for _ in range(calls):
                name = chance.choice(list(work))
                if not all(torch.equal(a, b) for a, b in zip(work[name](), expected[name], strict=True)):
                    wrong.append(name)
                if anatomies(model) != before:  # while the others are in the middle of their calls
                    wrong.append(f"{name} or another call changes a model")
        return wrong

    with ThreadPoolExecutor(threads) as pool:
        assert [wrong for wrong in pool.map(worker, range(threads)) if wrong] == []


def test_calls_from_threads_are_calls_one_after_the_other() -> None:
    run_in_threads(threads=8, calls=8)


@pytest.mark.slow
def test_eight_threads_with_a_hundred_calls_each() -> None:
    run_in_threads(threads=8, calls=100)


@torch.no_grad()
def test_an_error_in_one_thread_leaves_the_others_right() -> None:
    model = models()
    decoder, ids = model["decoder"], tokens(2, 13)
    expected, before = decoder(ids).logits, anatomies(model)
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
    assert torch.equal(decoder(ids).logits, expected) and anatomies(model) == before


@pytest.mark.parametrize("variant", ["paper", "spans", "selected", "matched"])
@torch.no_grad()
def test_nothing_about_a_backbone_changes_during_a_call(variant: str) -> None:
    """Looked at from inside of every layer; a copy that is made there is a whole model."""
    model, ids = recurrent_variant("llama", variant), tokens(2, 13)
    expected, looks, copies = model(ids).logits, [], []

    def look(*_: Any) -> None:
        looks.append(anatomy(model))
        if len(looks) == 1:
            copies.append(copy.deepcopy(model))

    hooks = [layer.register_forward_hook(look) for layer in model.backbone.model.layers]
    before = anatomy(model)
    assert torch.equal(model(ids).logits, expected)
    assert len(looks) >= 3 and all(found == before for found in looks)
    for hook in hooks:
        hook.remove()
    assert torch.equal(copies[0](ids).logits, expected)


@pytest.mark.parametrize("inner", ["same model", "same backbone", "its slots", "disabled"])
@torch.no_grad()
def test_a_call_inside_of_a_call(inner: str) -> None:
    """In the middle of a run of the backbone, another one: neither sees the other."""
    model = models()
    decoder, ids, other = model["decoder"], tokens(2, 13), tokens(1, 11, seed=1)

    def disabled() -> Tensor:
        with decoder.recurrence_disabled():
            return torch.cat([decoder(other).logits, decoder.backbone(other).logits])

    calls: dict[str, Callable[[], Tensor]] = {
        "same model": lambda: decoder(other).logits,
        "same backbone": lambda: model["same backbone"](other).logits,
        "its slots": lambda: model["its slots"](other).logits,
        "disabled": disabled,
    }
    alone, expected, found, inside = calls[inner](), decoder(ids).logits, [], []

    def in_the_middle(*_: Any) -> None:
        if not inside:
            inside.append(True)
            found.append(calls[inner]())
            inside.clear()

    hook = decoder.backbone.model.layers[1].register_forward_pre_hook(in_the_middle)
    assert torch.equal(decoder(ids).logits, expected)
    hook.remove()
    assert found and all(torch.equal(logits, alone) for logits in found)


@torch.no_grad()
def test_tasks_of_one_thread_take_turns() -> None:
    model, ids = models(), tokens(2, 13)
    names = ["decoder", "same backbone", "its slots"]

    async def read(name: str) -> Tensor:
        state, parts = None, []
        for piece in ids.split(4, dim=1):
            output = model[name](piece, state=state)
            state = output.state
            parts.append(output.logits)
            await asyncio.sleep(0)
        return torch.cat(parts, dim=1)

    async def together() -> list[Tensor]:
        return await asyncio.gather(*(read(name) for name in names * 2))

    alone = [asyncio.run(read(name)) for name in names * 2]
    assert all(map(torch.equal, asyncio.run(together()), alone))


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
def test_backbones_that_share_a_configuration_do_not_meet() -> None:
    config = GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    pair = [add_recurrence(GPT2LMHeadModel(config).eval(), carrier="spans", window=8, vectors=4) for _ in range(2)]
    assert pair[0].backbone.config is pair[1].backbone.config
    ids = tokens(1, 30)
    expected, before = [model(ids).logits for model in pair], anatomy(pair[0])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: pair[n % 2](ids).logits, range(80)))
    assert all(torch.equal(logits, expected[n % 2]) for n, logits in enumerate(found))
    assert anatomy(pair[0]) == before
