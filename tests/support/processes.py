"""Work in processes of its own: one that may be killed, or two that train together."""

import multiprocessing
import os
import signal
import socket

from accelerate.state import AcceleratorState, GradientState


def in_a_process(target, *args):
    """A fork shares the imports, which take longer than the training."""
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


def killed_while(target, *args):
    process = in_a_process(target, *args)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def as_one_of_two(rank, port, work):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    work()


def on_two_processes(work):
    """Their exit codes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [in_a_process(as_one_of_two, rank, port, work) for rank in (0, 1)]
    for process in ranks:
        process.join(120)
    return [process.exitcode for process in ranks]
