"""Models that ship: names instead of folders, facts that agree with cards, no writing into the package."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import anofpdm
from anofpdm.cli.main import app
from anofpdm.errors import ModelError
from anofpdm.models import registry
from anofpdm.models.registry import FOLDER, model_folder, shipped_models
from anofpdm.network.checkpoint import load_model
from anofpdm.student.student import load_student


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize("name", shipped_models())
class TestEveryModel:
    def test_facts_agree_with_the_card(self, name):
        model = shipped_models()[name]
        assert model.scores
        assert all(str(score) in model.card for score in model.scores)
        assert model.licence in model.card
        needs_licence = "phantom" not in name
        assert (model.folder / "DATA_LICENSE").is_file() == needs_licence

    def test_needs_are_modalities_of_its_student(self, name):
        _, config, _ = load_model(shipped_models()[name].folder / "student")
        model = shipped_models()[name]
        wanted = {*model.needs, *model.uses}
        assert wanted == set(config["network"]["modalities"])
        assert set(model.uses) == set(config["network"].get("optional", ()))
        assert all(modality in model.card.lower() for modality in wanted)

    def test_a_model_of_real_scans_has_a_check_for_unlike_scans(self, name):
        student = load_student(shipped_models()[name].folder, None, torch.device("cpu"))
        assert (student.typical is not None) == ("phantom" not in name)

    def test_hashes_in_the_card_are_those_of_the_files(self, name):
        model = shipped_models()[name]
        hashes = {json.loads(path.read_text())["sha256"] for path in model.folder.rglob("config.json")}
        assert set(re.findall(r"[0-9a-f]{64}", model.card)) <= hashes
        for path in model.folder.rglob("config.json"):
            assert load_model(path.parent)[2] == json.loads(path.read_text())["sha256"]


def test_sizes_allow_shipping():
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*.*")}
    assert max(sizes.values()) < 15e6
    assert all(size < 10e3 for path, size in sizes.items() if path.name == "config.json")
    assert sum(model.megabytes for model in shipped_models().values()) < 40


def test_list_and_card():
    listed = run("models")
    assert listed.exit_code == 0
    assert all(name in listed.output for name in shipped_models())
    assert [model["name"] for model in json.loads(run("models", "--json").output)] == list(shipped_models())
    unknown = run("models", "phantom-tumuor")
    assert unknown.exit_code == 1
    assert "did you mean phantom-tumour?" in unknown.output


@pytest.mark.parametrize("name", shipped_models())
def test_the_card_has_all_words_and_no_links_into_the_repository(name):
    card = run("models", name).output
    assert "](" not in card
    assert "../" not in card
    words = re.findall(r"[0-9a-f]{64}|--\w[\w-]+|\d[\d.,]*", re.sub(r"\]\([^)]*\)", "]", shipped_models()[name].card))
    assert set(words) <= set(re.findall(r"[0-9a-f]{64}|--\w[\w-]+|\d[\d.,]*", card))


def test_optional_modalities_are_listed(monkeypatch):
    known = shipped_models()["phantom-tumour"]
    monkeypatch.setattr(
        registry, "shipped_models", lambda: {"toy": replace(known, needs=("flair",), uses=("t1", "t2"))}
    )
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
    refused = run("segment", "phantom-tumuor", tmp_path, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "did you mean phantom-tumour?" in " ".join(refused.output.replace("│", " ").split())
    with pytest.raises(ModelError, match=r"no such folder.*did you mean phantom-tumour\?"):
        anofpdm.load("phantom-tumuor", "cpu")
    (tmp_path / "phantom-tumuor").mkdir()
    assert model_folder("phantom-tumuor") == Path("phantom-tumuor")


def test_nothing_is_written_into_the_package(tmp_path):
    for command in ("calibrate", "distill"):
        refused = run(command, "phantom-stroke", tmp_path)
        assert refused.exit_code == 2
        assert "--copy" in " ".join(refused.output.split())
    copied = run("models", "phantom-stroke", "--copy", tmp_path / "own")
    assert copied.exit_code == 0
    assert load_model(tmp_path / "own")[2] == load_model(FOLDER / "phantom-stroke")[2]
    assert run("models", "phantom-stroke", "--copy", tmp_path / "own").exit_code == 1
