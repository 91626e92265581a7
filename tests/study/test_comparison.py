"""benchmarks/comparison.py: what it would run, in which order, and what it does when something fails."""

import itertools
import subprocess
import sys

import pytest

from anofpdm.study.comparison.methods import METHODS
from tests import toys


@pytest.fixture(scope="module")
def comparison():
    return toys.benchmark("comparison")


def planned(comparison, tmp_path, *words):
    args = comparison.arguments().parse_args(["cohort", "--out", str(tmp_path), *words])
    return {task.name: task for task in comparison.plan(args)}


def after(words, option):
    return [value for word, value in itertools.pairwise(words) if word == option]


class TestPlan:
    def test_every_network_has_the_same_budget(self, comparison, tmp_path):
        tasks = planned(comparison, tmp_path, "--steps", "70", "--batch", "8")
        commands = [tasks[name].command() for name in ("guided", *comparison.TRAINED)]
        assert {words[0] for words in commands} == {"train"}
        assert len(commands) == 5
        for option in ("--steps", "--preset", "--learning-rate", "--batch"):
            assert len({tuple(after(words, option)) for words in commands}) == 1
        assert sorted(after(words, "--task") for words in commands) == [
            [],
            ["classifier"],
            ["healthy"],
            ["healthy"],
            ["unconditional"],
        ]

    def test_every_method_is_evaluated_once_with_the_networks_it_needs(self, comparison, tmp_path):
        tasks = planned(comparison, tmp_path)
        parts = [tasks[name].command() for name in tasks["scores"].needs]
        assert sorted(method for words in parts for method in after(words, "--method")) == sorted(METHODS)
        for words in parts:
            needed = {need for method in after(words, "--method") for need in METHODS[method].needs} - {"student"}
            assert {word.partition("=")[0] for word in after(words, "--with")} == needed

    def test_tasks_follow_their_dependencies(self, comparison, tmp_path):
        for given in ((), ("--model", str(tmp_path / "mine"))):
            seen: set[str] = set()
            for task in planned(comparison, tmp_path, *given).values():
                assert set(task.needs) <= seen
                seen.add(task.name)
        assert "guided" not in seen  # a trained model was given

    def test_a_given_model_keeps_its_student(self, comparison, tmp_path):
        (tmp_path / "mine" / "student").mkdir(parents=True)
        mine = str(tmp_path / "mine")
        assert not {"guided", "calibrate", "distill"} & set(planned(comparison, tmp_path, "--model", mine))
        (tmp_path / "mine" / "student").rmdir()
        tasks = planned(comparison, tmp_path, "--model", mine)
        assert "distill" in tasks["method-anofpdm-student"].needs

    def test_started_training_is_resumed(self, comparison, tmp_path):
        tasks = planned(comparison, tmp_path)
        assert "--resume" not in tasks["healthy"].command()
        (tmp_path / "healthy").mkdir()
        (tmp_path / "healthy" / comparison.STATE).touch()
        words = tasks["healthy"].command()
        assert "--resume" in words
        assert "--preset" not in words  # the preset it was started with


class TestRun:
    @pytest.fixture
    def started(self, comparison, monkeypatch):
        """Tasks that fail or end well at once, as their command says; their names in the order they began."""
        started = []

        def start(task, _out):
            started.append(task.name)
            return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({task.command()[0]!r} == 'fail')"])

        monkeypatch.setattr(comparison, "start", start)
        return started

    def test_failure_stops_dependent_tasks_only(self, comparison, started, tmp_path):
        kind = {"a": "work", "b": "fail", "c": "work", "d": "work", "e": "work"}
        needs = {"c": ("a",), "d": ("b",), "e": ("d",)}
        tasks = [comparison.Task(name, needs.get(name, ()), lambda name=name: [kind[name]]) for name in kind]
        assert sorted(comparison.run(tasks, tmp_path, jobs=2)) == ["b", "d", "e"]
        assert started == ["a", "b", "c"]
        started.clear()
        kind["b"] = "work"
        assert comparison.run(tasks, tmp_path, jobs=1) == []
        assert started == ["b", "d", "e"]  # finished tasks are not repeated

    def test_message_of_a_failed_task_is_reported(self, comparison, tmp_path, capsys):
        """Claims of scores that are not there, by the real script."""
        tasks = [comparison.Task("claims", (), lambda: ["claims"]), comparison.Task("x", (), lambda: ["nonsense"])]
        assert sorted(comparison.run(tasks, tmp_path, jobs=1)) == ["claims", "x"]
        output = capsys.readouterr().out
        assert "claims: FAILED, exit code 1: FileNotFoundError" in output
        assert "signal 11" in comparison.failure(-11, tmp_path / "logs" / "x.log")
        assert "No such command 'nonsense'" in (tmp_path / "logs" / "x.log").read_text()


def test_parts_are_joined_into_one_folder(comparison, tmp_path):
    parts = {"a": "gradient", "b": "cg-cdm"}
    joined = {"settings.json"}
    for name, method in parts.items():
        results = {f"methods/{method}/unhealthy-seed0.json", f"tuned-{method}.json"}
        joined |= results
        for file in (*results, "settings.json", "table.md"):  # the table is of this part alone
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text("the same" if file == "settings.json" else name)
    comparison.join([tmp_path / name for name in parts], tmp_path / "all")
    files = (path for path in (tmp_path / "all").rglob("*") if path.is_file())
    assert {path.relative_to(tmp_path / "all").as_posix() for path in files} == joined
