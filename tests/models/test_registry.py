"""Models that ship: names instead of folders, facts that agree with cards, no writing into the package."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import anofpdm
from anofpdm.errors import ModelError
from anofpdm.models import registry
from anofpdm.models.registry import FOLDER, model_folder, shipped_models
from anofpdm.network.checkpoint import load_model
from anofpdm.student.student import load_student
from tests.commands import run

NUMBERS_AND_OPTIONS = r"[0-9a-f]{64}|--\w[\w-]+|\d[\d.,]*"


@pytest.mark.parametrize("model", shipped_models().values(), ids=shipped_models())
class TestEveryModel:
    def test_facts_and_hashes_agree_with_the_card(self, model):
        assert model.scores
        assert all(str(score) in model.card for score in model.scores)
        assert model.licence in model.card
        configs = [*model.folder.rglob("config.json")]
        hashes = {json.loads(path.read_text())["sha256"] for path in configs}
        assert (
            set(re.findall(r"[0-9a-f]{64}", model.card)) <= hashes == {load_model(path.parent)[2] for path in configs}
        )

    def test_the_student(self, model):
        """Its modalities are those of the facts; if made from real scans, it has a check for unlike scans."""
        network = load_model(model.folder / "student")[1]["network"]
        wanted = {*model.needs, *model.uses}
        assert (wanted, set(model.uses)) == (set(network["modalities"]), set(network.get("optional", ())))
        assert all(modality in model.card.lower() for modality in wanted)
        is_real = "phantom" not in model.name
        assert (load_student(model.folder, None, torch.device("cpu")).typical is not None) == is_real
        assert (model.folder / "DATA_LICENSE").is_file() == is_real

    def test_the_printed_card_has_all_words_and_no_links_into_the_repository(self, model):
        card = run("models", model.name).output
        assert "](" not in card
        assert "../" not in card
        words = re.findall(NUMBERS_AND_OPTIONS, re.sub(r"\]\([^)]*\)", "]", model.card))
        assert set(words) <= set(re.findall(NUMBERS_AND_OPTIONS, card))


def test_sizes_allow_shipping():
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*.*")}
    assert max(sizes.values()) < 15e6
    assert all(size < 10e3 for path, size in sizes.items() if path.name == "config.json")
    assert sum(model.megabytes for model in shipped_models().values()) < 40


def test_list(monkeypatch):
    listed = run("models").output
    assert all(name in listed for name in shipped_models())
    assert [model["name"] for model in json.loads(run("models", "--json").output)] == list(shipped_models())
    assert "did you mean phantom-tumour?" in run("models", "phantom-tumuor", code=1).output
    toy = replace(shipped_models()["phantom-tumour"], needs=("flair",), uses=("t1", "t2"))
    monkeypatch.setattr(registry, "shipped_models", lambda: {"toy": toy})
    assert "needs     flair (optional: t1, t2)" in run("models").output
    (listed,) = json.loads(run("models", "--json").output)
    assert (listed["needs"], listed["uses"]) == (["flair"], ["t1", "t2"])


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    assert model_folder("phantom-tumour") == FOLDER / "phantom-tumour"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phantom-tumour").mkdir()
    assert model_folder("phantom-tumour") == Path("phantom-tumour")
    assert model_folder(tmp_path / "elsewhere") == tmp_path / "elsewhere"  # the loader reports what is missing
    with pytest.raises(ModelError, match="anofpdm models"):
        anofpdm.load("elsewhere", "cpu")


def test_a_misspelt_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = run("segment", "phantom-tumuor", tmp_path, "--out", tmp_path / "out", code=2).output
    assert "did you mean phantom-tumour?" in " ".join(refused.replace("│", " ").split())
    with pytest.raises(ModelError, match=r"no such folder.*did you mean phantom-tumour\?"):
        anofpdm.load("phantom-tumuor", "cpu")
    (tmp_path / "phantom-tumuor").mkdir()
    assert model_folder("phantom-tumuor") == Path("phantom-tumuor")


def test_nothing_is_written_into_the_package(tmp_path):
    for command in ("calibrate", "distill"):
        assert "--copy" in run(command, "phantom-stroke", tmp_path, code=2).output
    run("models", "phantom-stroke", "--copy", tmp_path / "own")
    assert load_model(tmp_path / "own")[2] == load_model(FOLDER / "phantom-stroke")[2]
    run("models", "phantom-stroke", "--copy", tmp_path / "own", code=1)
