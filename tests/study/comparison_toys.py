"""A small cohort, untrained networks, and comparisons of every method with few levels."""

from dataclasses import replace

import numpy as np
import torch

from anofpdm.calibration.fit_calibration import CalibrationConfig
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.method.detection import CurveDetector
from anofpdm.network import checkpoint
from anofpdm.network.config import preset
from anofpdm.network.predictor import load_trained
from anofpdm.network.unet import UNet
from anofpdm.student.decide import StudentCalibration
from anofpdm.student.student import Student, save_student
from anofpdm.student.student_network import StudentConfig, StudentNet
from anofpdm.study.comparison.job import EvaluationConfig, EvaluationJob
from anofpdm.study.comparison.methods import METHODS, MethodSelection, ReconstructionMethod
from anofpdm.study.comparison.names import MODEL_TASKS
from anofpdm.study.comparison.rival_models import load_models
from anofpdm.study.rivals.noised_classifier import NoisedClassifier
from tests import toys

CPU = torch.device("cpu")
TASKS = {"guided": ("guided", "gaussian"), **MODEL_TASKS}
SAMPLE = 24
QUICK = {"level": 2, "scale": 300.0, "invert": 1, "strength": 1.0, "steps": 2}
# The same methods, less far up: every name, every code path, a hundredth of the time.
SHORT = {
    name: replace(method, grid=(QUICK, {**QUICK, "level": 4})) if isinstance(method, ReconstructionMethod) else method
    for name, method in METHODS.items()
}


def untrained(task):
    torch.manual_seed(3)
    labels = {} if task == "guided" else {"n_labels": 1, "null_label": 0}
    build = NoisedClassifier if task == "classifier" else UNet
    return build(preset("tiny", 2, channels=4, multipliers=(1, 2), attention=(2,), **labels))


def fill(folder):
    """A cohort, and an untrained network for every role in a comparison."""
    split = "\n".join(f"p{number},{('train', 'val', 'test')[number // 4]}" for number in range(12))
    (folder / "split.csv").write_text(f"patient,split\n{split}\n")
    scans = toys.brats_cohort(folder / "scans", 12)
    prepare(plan_cohort("brats21", scans, size=16, split=folder / "split.csv"), folder / "cohort")
    for name, (task, noise) in TASKS.items():
        toys.save_untrained(folder / name, untrained(task), task=task, training={"noise": noise})
    torch.manual_seed(4)
    student = StudentNet(StudentConfig(("flair", "t2"), 16, width=8, multipliers=(1, 2)))
    detector = CurveDetector(np.zeros(2), np.ones(2), np.array([0.0, 1.0]), offset=0.0, strength=1.0)
    calibration = StudentCalibration(detector, accuracy=0.5, auc=0.5, n_healthy=1, n_unhealthy=1, smallest=0)
    sha256 = checkpoint.load_model(folder / "guided")[2]
    save_student(folder / "guided", Student(student.eval(), calibration, sha256, CPU), {})


class Blurred:
    """An untrained network's answers are as rough as noise; smoothed, its maps have regions that a mask can take."""

    device, precision = CPU, "fp32"

    def __init__(self, predict):
        self.predict = predict

    def __call__(self, x, t, labels):
        return torch.nn.functional.avg_pool2d(self.predict(x, t, labels), 5, 1, 2, count_include_pad=False)


def new_job(made, out, names=("anofpdm-ddim",), batch=32, seeds=(0,), **changes):
    trained = load_trained(made / "guided", CPU)
    trained = replace(trained, predict=Blurred(trained.predict))  # type: ignore[arg-type]
    others = {name: made / name for name in TASKS if name != "guided"}
    calibration = CalibrationConfig(signal="error", score=("flair",), levels=4, strengths=(0.0, 2.0), batch=batch)
    config = EvaluationConfig(calibration=calibration, sample=SAMPLE, tune=12, seeds=seeds, batch=batch, **changes)
    models = load_models(trained, others, CPU, "fp32")
    cohort = open_cohort(made / "cohort")
    return EvaluationJob(trained, models, cohort, MethodSelection(tuple(names), SHORT), out, config)
