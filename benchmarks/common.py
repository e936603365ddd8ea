"""Shared by the benchmarks: a random model of GPT-2 small's size, memory of the process, and medians of rounds.

`make bench` runs all benchmarks; each can be run alone, as `python benchmarks/training_step.py`.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import onward


def gpt2_small(**fields) -> onward.WindowRecurrentForCausalLM:
    torch.manual_seed(0)
    return onward.add_recurrence(GPT2LMHeadModel(GPT2Config(use_cache=False)), **fields)


def peak_megabytes() -> float:
    """The highest memory this process has held. Linux only; getrusage may report the parent's."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def megabytes_held() -> float:
    """The memory this process holds now. Linux only."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def medians(jobs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each job. The jobs take turns, so that noise affects them equally."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def verdict(what: str, ratio: float, goal: float) -> None:
    print(f"{what}: {ratio:.3f} times (goal: at most {goal}): {'met' if ratio <= goal else 'NOT MET'}")
