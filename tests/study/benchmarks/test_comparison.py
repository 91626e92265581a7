"""benchmarks/comparison.py: what it would run, in which order, and what it does when something fails."""

import itertools
import subprocess
import sys

import pytest

from anofpdm.study.comparison.names import MODEL_TASKS
from tests import toys


@pytest.fixture(scope="module")
def comparison():
    return toys.benchmark("comparison")


def planned(comparison, tmp_path, *words):
    args = comparison.arguments().parse_args(["cohort", "--out", str(tmp_path), *words])
    return {task.name: task for task in comparison.plan(args)}


def after(words, option):
    return [value for word, value in itertools.pairwise(words) if word == option]


def test_every_network_has_the_same_budget_and_started_training_is_resumed(comparison, tmp_path):
    (tmp_path / "healthy").mkdir()
    (tmp_path / "healthy" / comparison.STATE).touch()
    tasks = planned(comparison, tmp_path, "--steps", "70")
    resumed, *commands = (tasks[name].command for name in ("healthy", *({"guided", *comparison.TRAINED} - {"healthy"})))
    for option in ("--steps", "--preset", "--learning-rate"):
        assert len({tuple(after(words, option)) for words in commands}) == 1
    assert sorted(task for words in commands for task in after(words, "--task")) == [
        "classifier", "healthy", "unconditional"
    ]  # fmt: skip
    assert "--resume" in resumed
    assert "--preset" not in resumed  # the preset it was started with


@pytest.mark.parametrize("given", ["no model", "a model", "a model with a student"])
def test_tasks_follow_their_dependencies(comparison, tmp_path, given):
    model = tmp_path / "mine"
    (model / "student" if "student" in given else model).mkdir(parents=True)
    tasks = planned(comparison, tmp_path, *(() if given == "no model" else ("--model", str(model))))
    seen: set[str] = set()
    for task in tasks.values():
        assert set(task.needs) <= seen
        seen.add(task.name)
    assert ("guided" in seen) == (given == "no model")
    assert ("distill" in seen) == ("distill" in tasks["scores"].needs) == ("student" not in given)
    networks = {word.partition("=")[0] for word in after(tasks["scores"].command, "--with")}
    assert networks == {*MODEL_TASKS} == {*tasks["scores"].needs} & {*MODEL_TASKS}


class TestRun:
    @pytest.fixture
    def started(self, comparison, monkeypatch):
        """Tasks that fail or end well at once, as their command says; their names in the order they began."""
        started = []

        def start(task, _out):
            started.append(task.name)
            return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({task.command[0]!r} == 'fail')"])

        monkeypatch.setattr(comparison, "start", start)
        return started

    def test_failure_stops_dependent_tasks_only(self, comparison, started, tmp_path):
        needs = {"a": (), "b": (), "c": ("a",), "d": ("b",), "e": ("d",)}
        tasks = [comparison.Task(name, before, ["fail" if name == "b" else "work"]) for name, before in needs.items()]
        assert sorted(comparison.run(tasks, tmp_path, jobs=2)) == ["b", "d", "e"]
        assert started == ["a", "b", "c"]
        started.clear()
        tasks[1].command[0] = "work"
        assert comparison.run(tasks, tmp_path, jobs=1) == []
        assert started == ["b", "d", "e"]  # finished tasks are not repeated

    def test_a_failed_task_is_reported_with_its_log(self, comparison, tmp_path, capsys):
        assert comparison.run([comparison.Task("x", (), ["nonsense"])], tmp_path, jobs=1) == ["x"]
        assert "x: FAILED with code 2, see logs/x.log" in capsys.readouterr().out
        assert "No such command 'nonsense'" in (tmp_path / "logs" / "x.log").read_text()
