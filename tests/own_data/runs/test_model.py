"""A trained model as Python users expect it: load, encode, save, share."""

import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import aleator as al
from aleator.data import Inputs
from aleator.encoders import HubText, SmallResNet
from aleator.own_data import Run
from aleator.own_data.runs import model
from tests.own_data.conftest import blobs


@pytest.fixture
def trained(run):
    return al.AleatorModel.from_pretrained(run.folder, device="cpu")


@pytest.fixture(scope="module")
def images():
    """A model of images that learned nothing."""
    torch.manual_seed(0)
    encoder = al.Encoder(SmallResNet(width=4), dim=4).eval()
    return al.AleatorModel(Run(Path("run"), encoder, Inputs("images", size=16), al.VMFKernel(), 0.5, "abc", {}, {}))


class TestEncode:
    def test_it_gives_the_posteriors_of_the_run_whatever_the_batches(self, trained, run):
        rows, _ = blobs()
        expected = run.posteriors(rows)
        for batch_size in (None, 7, 400):
            q = trained.encode(rows, batch_size=batch_size)
            assert isinstance(q, al.VonMisesFisher)
            torch.testing.assert_close(q.mu, expected.mu)
            torch.testing.assert_close(q.kappa, expected.kappa)

    def test_rows_come_in_any_form(self, trained):
        rows, _ = blobs()
        for form in (rows[:3], rows[:3].tolist(), list(rows[:3]), torch.from_numpy(rows[:3]), rows[:3].astype(float)):
            assert torch.equal(trained.encode(form).mu, trained.encode(rows[:3]).mu)

    def test_one_item_has_no_batch(self, trained):
        rows, _ = blobs()
        for form in (rows[0], rows[0].tolist(), torch.from_numpy(rows[0])):
            q = trained.encode(form)
            assert q.batch_shape == ()
            torch.testing.assert_close(q.mu, trained.encode(rows[:2]).mu[0])
        assert trained.label_probabilities(rows[0]).shape == (4,)
        assert trained.unlike(rows[0]).shape == ()

    def test_images_come_in_any_form(self, images, tmp_path):
        pixels = np.random.default_rng(0).integers(256, size=(20, 24, 3), dtype=np.uint8)
        path = tmp_path / "one.png"
        Image.fromarray(pixels).save(path)
        tensor = torch.from_numpy(pixels).permute(2, 0, 1)
        forms = [path, str(path), path.read_bytes(), Image.open(path), pixels, tensor]
        mixed = images.encode(forms, batch_size=4)
        assert mixed.batch_shape == (6,)
        for i, form in enumerate(forms):
            one = images.encode(form)
            assert one.batch_shape == ()
            torch.testing.assert_close(one.mu, mixed[i].mu)
            torch.testing.assert_close(one.mu, mixed[0].mu)
        assert images.encode(np.stack([pixels, pixels])).batch_shape == (2,)
        assert images.encode(np.stack([pixels[..., 0]] * 5)).batch_shape == (5,)  # five grey images

    @pytest.mark.hub
    def test_strings(self):
        import tokenizers
        import transformers

        words = {"[PAD]": 0, "[UNK]": 1, "a": 2, "dog": 3, "cat": 4}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        config = transformers.BertConfig(
            vocab_size=5, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        network = HubText(json.loads(config.to_json_string(use_diff=False)), tokenizer.to_str())
        encoder = al.Encoder(network, dim=3).eval()
        texts = al.AleatorModel(Run(Path("run"), encoder, Inputs("text"), al.VMFKernel(), 0.5, "abc", {}, {}))
        q = texts.encode(["a dog", "a cat", "a"], batch_size=2)
        assert q.batch_shape == (3,)
        torch.testing.assert_close(texts.encode("a cat").mu, q.mu[1])

    def test_several_modes_give_mixtures(self):
        encoder = al.Encoder(SmallResNet(width=4), dim=4, modes=2).eval()
        several = al.AleatorModel(
            Run(Path("run"), encoder, Inputs("images", size=8), al.VMFKernel(), 0.5, "abc", {}, {})
        )
        assert isinstance(several.encode([np.zeros((8, 8, 3), np.uint8)]), al.VMFMixture)

    def test_progress_is_shown_if_asked_for(self, trained, capsys):
        rows, _ = blobs()
        trained.encode(rows, batch_size=100)
        assert capsys.readouterr().err == ""
        trained.encode(rows, batch_size=100, show_progress=True)
        assert "400/400" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("items", "options", "message"),
        [
            ([], {}, "items = 0: no item"),
            (np.zeros((2, 5)), {}, "takes rows of 6 numbers"),
            (np.zeros((2, 6)), {"batch_size": 0}, "batch_size = 0"),
            ([[1.0] * 6, [float("nan")] * 6], {}, "row 1.*not finite"),
        ],
    )
    def test_mistakes_are_named(self, trained, items, options, message):
        with pytest.raises(ValueError, match=message):
            trained.encode(items, **options)

    def test_a_missing_image_is_named(self, images):
        with pytest.raises(ValueError, match=r"nowhere\.png.*there is no such file"):
            images.encode(["nowhere.png"])


def test_labels_and_novelty_are_those_of_the_run(trained, run):
    rows, _ = blobs()
    torch.testing.assert_close(trained.label_probabilities(rows, batch_size=90), run.label_probabilities(rows))
    assert torch.equal(trained.unlike(rows, batch_size=90), run.unlike(rows))
    assert trained.label_names == run.label_names


def test_a_model_without_labels_says_so(images):
    with pytest.raises(ValueError, match="has no label probabilities"):
        images.label_probabilities(np.zeros((1, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="an older release trained it"):
        images.unlike(np.zeros((1, 8, 8, 3), np.uint8))


def test_saved_and_loaded_it_is_the_same(trained, tmp_path):
    folder = trained.save_pretrained(tmp_path / "copy")
    again = al.AleatorModel.from_pretrained(folder, device="cpu")
    rows, _ = blobs()
    assert torch.equal(again.encode(rows).mu, trained.encode(rows).mu)
    assert torch.equal(again.label_probabilities(rows), trained.label_probabilities(rows))
    assert again.run.fingerprint == trained.run.fingerprint
    assert again.run.maps == trained.run.maps
    assert (folder / "README.md").is_file()
    assert (folder / "items.npz").read_bytes() == (trained.run.folder / "items.npz").read_bytes()
    with pytest.raises(ValueError, match="is not empty"):
        trained.save_pretrained(folder)


@pytest.mark.hub
class TestHub:
    @pytest.fixture
    def uploads(self, monkeypatch):
        """A hub that keeps what it is given."""
        from huggingface_hub import errors

        kept = {}

        class Address(str):
            repo_id = "me/blobs"

        def upload_folder(*, repo_id, folder_path, commit_message, token):
            kept[repo_id] = {p.name: p.read_bytes() for p in Path(folder_path).rglob("*") if p.is_file()}
            kept["loaded"] = al.AleatorModel.from_pretrained(folder_path, device="cpu")

        made = types.SimpleNamespace(
            errors=errors,
            create_repo=lambda name, **options: Address(f"https://hub/{name}"),
            upload_folder=upload_folder,
        )
        monkeypatch.setattr(model, "_hub", lambda: made)
        monkeypatch.setattr(model, "hub_answers", lambda: True)
        return kept

    def test_pushing_uploads_a_folder_that_loads_and_tells_no_places(self, trained, uploads, features):
        assert trained.push_to_hub("me/blobs") == "https://hub/me/blobs"
        files = uploads["me/blobs"]
        assert {"config.json", "inputs.json", "metrics.json", "README.md", "encoder.json"} <= set(files)
        assert "items.npz" not in files
        assert uploads["loaded"].run.fingerprint == trained.run.fingerprint
        assert not any(str(features).encode() in content for content in files.values())
        assert b"# blobs" in files["README.md"]
        assert "command" not in json.loads(files["metrics.json"])["provenance"]

    def test_offline_nothing_is_tried(self, trained, monkeypatch):
        monkeypatch.setattr(model, "hub_answers", lambda: False)
        with pytest.raises(ValueError, match="the hub does not answer from here; use save_pretrained"):
            trained.push_to_hub("me/blobs")

    def test_a_refusal_is_told_in_plain_words(self, trained, uploads, monkeypatch):
        def refuse(name, **options):
            raise OSError("401 Unauthorized\nmore lines")

        monkeypatch.setattr(model._hub(), "create_repo", refuse)
        with pytest.raises(ValueError, match=r"the hub refuses \(401 Unauthorized\); log in with `hf auth login`"):
            trained.push_to_hub("me/blobs")

    def test_a_name_on_the_hub_is_downloaded(self, run, monkeypatch):
        from huggingface_hub import errors

        made = types.SimpleNamespace(errors=errors, snapshot_download=lambda name: str(run.folder))
        monkeypatch.setattr(model, "_hub", lambda: made)
        monkeypatch.setattr(model, "find_model", lambda name: name)
        assert al.AleatorModel.from_pretrained("me/blobs", device="cpu").run.fingerprint == run.fingerprint

    def test_a_model_that_is_nowhere(self, monkeypatch):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ValueError, match="name = 'runs/nothing': is not on this machine"):
            al.AleatorModel.from_pretrained("runs/nothing")


def test_a_fresh_process_loads_and_encodes(run):
    code = """
import sys, numpy, aleator as al
model = al.AleatorModel.from_pretrained(sys.argv[1])
q = model.encode(numpy.zeros((2, 6)))
print(repr(q), repr(model), *(name for name in ("transformers", "faiss", "matplotlib") if name in sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code, str(run.folder)], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("VonMisesFisher(batch_shape=(2,), dim=4, dtype=torch.float32)")
    assert "AleatorModel(features, dim=4, labels=4, device=" in result.stdout
    assert not any(name in result.stdout for name in ("transformers", "faiss", "matplotlib"))
