"""Files of version 0.1 are read as they were written: models, added parameters alone, and states anywhere in a text.

The files are in the folder `version_0_1`. The code of version 0.1 wrote them, with the first four logits that its
models gave to each token.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import recurrent_variant
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from onward.models.window_recurrent.state import WindowState

FILES = Path(__file__).parent / "version_0_1"
MODELS = sorted(folder.name for folder in FILES.iterdir() if (folder / "expected.safetensors").is_file())
READ = {"closed": 9, "open": 11, "prefix": 11}
IDS = (torch.arange(40) * 7 % 17 + 1).view(2, 20)


def assert_as_then(found: Tensor, expected: Tensor) -> None:
    assert_close(found[..., :4], expected, rtol=0.0, atol=1e-5 * expected.abs().max().item())


def loaded(name: str) -> tuple[Any, dict[str, Tensor]]:
    model = AutoModelForCausalLM.from_pretrained(FILES / name).eval()
    return model, load_file(FILES / name / "expected.safetensors")


def test_every_carrier_of_then_is_tested() -> None:
    kinds = [json.loads((FILES / name / "config.json").read_text())["carrier"] for name in MODELS]
    assert sorted(kinds) == ["constant", "none", "pooled", "pooled", "spans", "spans", "spans"]


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_models_are_what_they_were(name: str) -> None:
    model, expected = loaded(name)
    assert_as_then(model(IDS).logits, expected["whole"])


@pytest.mark.parametrize("place", READ)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_states_are_continued(name: str, place: str) -> None:
    model, expected = loaded(name)
    state = WindowState.load(FILES / name / f"{place}.state")
    assert_as_then(model(IDS[:, READ[place] :], state=state).logits, expected[place])


@torch.no_grad()
def test_added_parameters_find_their_backbone(tmp_path: Path) -> None:
    shutil.copytree(FILES / "added", tmp_path / "added")
    config = json.loads((tmp_path / "added" / "config.json").read_text())
    config["backbone_name"] = str(FILES / "backbone")
    (tmp_path / "added" / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "added").eval()
    assert_as_then(model(IDS).logits, load_file(FILES / "pooled" / "expected.safetensors")["whole"])


@pytest.mark.parametrize("place", READ)
def test_a_memory_of_slots_does_not_continue_them(place: str) -> None:
    with pytest.raises(ValueError, match="can only be continued by the model and configuration that made it"):
        recurrent_variant("llama", "selected")(IDS, state=WindowState.load(FILES / "spans" / f"{place}.state"))
