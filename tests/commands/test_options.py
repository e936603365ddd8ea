"""Groups of options: how a verb takes them, what help shows, and that defaults in help are the real ones."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from onward import BlockRecurrentConfig, WindowRecurrenceConfig
from onward.commands.errors import told_by_option
from onward.commands.finetune import TuningOptions
from onward.commands.options import option, with_options
from onward.commands.train_block import block
from onward.commands.train_masked import masked
from onward.commands.train_window import WindowOptions, window
from onward.finetuning import FinetuningRecipe
from onward.training import TrainingRecipe
from onward.utils.fields import FieldError


@dataclass(frozen=True)
class Crew:
    captain: Annotated[str, option("Who commands.")]
    sailors: Annotated[int, option("How many there are.", "--hands")] = 3
    asleep: Annotated[bool, option("Nobody works.", "--asleep/--awake")] = False


LARGE = Crew("Ahab", sailors=30)


Ship = Annotated[str, typer.Argument()]


def sail(ship: Ship, crew: Crew, settings: Annotated[list[str] | None, option("", "--set")] = None) -> None:
    print(f"{ship}: {crew}")


def sail_far(ship: Ship, crew: Crew = LARGE) -> None:
    print(f"{ship}: {crew}")


def run(verb: Any, *arguments: str) -> str:
    app = typer.Typer()
    app.command()(with_options(verb))
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"})
    return result.output


def test_fields_of_a_group_are_options_and_come_back_as_the_group():
    assert run(sail, "Pequod", "--captain", "Ahab", "--awake") == f"Pequod: {Crew('Ahab')}\n"
    assert run(sail, "Pequod", "--captain", "A", "--hands", "7", "--asleep") == f"Pequod: {Crew('A', 7, True)}\n"
    assert "Missing option '--captain'" in run(sail, "Pequod")


def test_a_verb_gives_a_group_its_own_defaults():
    assert run(sail_far, "Pequod", "--hands", "31") == f"Pequod: {Crew('Ahab', 31)}\n"
    shown = run(sail_far, "--help")
    assert "[default: Ahab]" in shown and "[default: 30]" in shown and "How many there are." in shown


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("captain", "Captain Ahab", "--captain 'Captain Ahab': why"),
        ("sailors", 0, "--hands 0: why"),
        ("asleep", False, "--awake: why"),
        ("asleep", True, "--asleep: why"),
        ("ship", "Pequod", "ship='Pequod': why"),
        ("masts", 3, "--set masts = 3: why"),
        ("sails", 3, "sails=3: why"),
    ],
)
def test_an_error_of_a_field_is_told_by_its_option(field, value, told):
    with pytest.raises(ValueError) as raised, told_by_option(with_options(sail), {"settings": ["masts = 3"]}):
        raise FieldError(field, value, "why")
    assert str(raised.value) == told


# --- defaults --------------------------------------------------------------------------------------

VERBS = {"window-recurrent": window, "block-recurrent": block, "masked": masked}


def shown_defaults(verb: Any) -> dict[str, Any]:
    """What help shows for every option: its default, or the text in the place of one."""
    shown = {}
    for name, parameter in inspect.signature(with_options(verb)).parameters.items():
        info = parameter.annotation.__metadata__[0]
        shown[name] = info.show_default if isinstance(info.show_default, str) else parameter.default
    return shown


@pytest.mark.parametrize("kind", VERBS)
def test_help_shows_the_recipes_defaults(kind):
    shown, real = shown_defaults(VERBS[kind]), TrainingRecipe.preset(kind)
    named = [field.name for field in fields(TrainingRecipe) if field.name in shown]
    assert len(named) >= 13
    assert shown.pop("segments_at_once") == "all" and real.segments_at_once is None
    assert shown.pop("save_every_tokens") == f"every {real.save_every_minutes} minutes"
    if kind == "window-recurrent":
        assert shown.pop("random_slots") == "always --slots" and real.random_slots is None
        assert shown.pop("teacher") == "the next token alone" and real.teacher is None
        assert shown.pop("teacher_share") == f"{real.teacher_share} with a teacher"
    if kind == "masked":
        assert shown.pop("sequence_length") == "all positions of the model" and real.sequence_length is None
    if kind == "block-recurrent":
        assert shown.pop("batch_size") is None  # tokens_per_step says how large a step is
    for name in shown.keys() & set(named):
        default = getattr(real, name)
        if name == "learning_rate":
            first, condition, second = re.fullmatch(r"(\S+), with (.*) (\S+)", shown[name]).groups()
            assert float(first) == default
            if "lora" not in condition:
                assert float(second) == TrainingRecipe.preset(kind, optimizer=condition).learning_rate
        elif isinstance(shown[name], str) and isinstance(default, int):
            assert int(shown[name]) == default, name
        else:
            assert shown[name] == default, name


def test_help_shows_the_configurations_defaults():
    assert WindowRecurrenceConfig(**WindowOptions().fields()).to_dict() == WindowRecurrenceConfig().to_dict()
    assert int(shown_defaults(block)["window"]) == BlockRecurrentConfig().window
    real = FinetuningRecipe()
    assert all(field.default == getattr(real, field.name) for field in fields(TuningOptions))
