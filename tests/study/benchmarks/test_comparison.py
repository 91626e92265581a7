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


def test_every_network_has_the_same_budget_and_started_training_is_resumed(comparison, tmp_path):
    (tmp_path / "healthy").mkdir()
    for started in (False, True):
        tasks = planned(comparison, tmp_path, "--steps", "70")
        names = {"guided", *comparison.TRAINED} - ({"healthy"} if started else set())
        commands = [tasks[name].command() for name in names]
        for option in ("--steps", "--preset", "--learning-rate"):
            assert len({tuple(after(words, option)) for words in commands}) == 1
        (tmp_path / "healthy" / comparison.STATE).touch()
    trained = sorted(task for words in commands for task in after(words, "--task"))
    assert trained == ["classifier", "healthy", "unconditional"]
    words = tasks["healthy"].command()
    assert "--resume" in words
    assert "--preset" not in words  # the preset it was started with


def test_every_method_is_evaluated_once_with_the_networks_it_needs(comparison, tmp_path):
    tasks = planned(comparison, tmp_path)
    parts = [tasks[name].command() for name in tasks["scores"].needs]
    assert sorted(method for words in parts for method in after(words, "--method")) == sorted(METHODS)
    for words in parts:
        needed = {need for method in after(words, "--method") for need in METHODS[method].needs} - {"student"}
        assert {word.partition("=")[0] for word in after(words, "--with")} == needed


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
    assert ("distill" in seen) == ("student" not in given)
    assert ("distill" in tasks["method-anofpdm-student"].needs) == ("student" not in given)


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

    def test_a_failed_task_is_reported_with_its_log(self, comparison, tmp_path, capsys):
        assert comparison.run([comparison.Task("x", (), lambda: ["nonsense"])], tmp_path, jobs=1) == ["x"]
        assert "x: FAILED with code 2, see logs/x.log" in capsys.readouterr().out
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
