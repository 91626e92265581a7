"""Scans unlike those in training, on drawn heads and on numbers with a known distribution."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

from anofpdm.student.student import load_student, save_student
from anofpdm.student.typical import PARTS, describe_scan, fit_typical
from tests.optional_toys import make_student

ONE = ("flair",)
EACH = sum(PARTS.values())  # numbers of a modality


def heads(seed, *, count=40, rim=0.2, size=48, invert=False):
    """[count] scans of 6 slices: ellipses with a bright centre, all a little different."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    scans = []
    for _ in range(count):
        height, width = random.normal(0.85, 0.02), random.normal(0.7, 0.02)
        radius = np.sqrt((rows / height) ** 2 + ((columns) / width) ** 2)
        inside = radius < 1
        image = 0.5 + random.normal(0.2, 0.02) * np.cos(3 * radius) + 0.1 * rows + rim * (radius > 0.85)
        image = np.where(inside, 1 - image if invert else image, 0)
        noise = random.normal(0, 0.02, (6, 1, size, size)) * inside
        scans.append(2 * np.clip(image + noise, 0, 1) - 1)
    return scans


def columns(names, given):
    """Of the numbers of a scan with the modalities `names`, those of a scan that has `given`."""
    numbers = np.arange(6 + len(names) * EACH)
    return np.concatenate([numbers[:6], *(numbers[6:].reshape(-1, EACH)[names.index(name)] for name in given)])


def described(*args, **options):
    return np.stack([describe_scan(scan) for scan in heads(*args, **options)])


@pytest.fixture(scope="module")
def typical():
    return fit_typical(described(0, count=120), ONE)


def test_few_other_scans_of_the_same_kind_are_unusual(typical):
    assert np.mean([typical.unusual(numbers, ONE) is not None for numbers in described(1, count=100)]) <= 0.1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rim": 0.5}, "rim|intensities"),
        ({"invert": True}, "intensities|bright|rim"),
        ({"size": 96}, "intensities"),  # twice the pixels: smoother
    ],
)
def test_other_heads_are_unusual(typical, change, words):
    different = [typical.unusual(numbers, ONE) for numbers in described(2, count=20, **change)]
    assert all(different)
    assert all(any(word in text for word in words.split("|")) for text in different)


def test_an_upside_down_or_cropped_head_is_unusual(typical):
    for scan in heads(3, count=10):
        assert typical.unusual(describe_scan(scan[:, :, ::-1]), ONE)
        cropped = scan.copy()
        cropped[..., :20] = -1
        assert typical.unusual(describe_scan(cropped), ONE)


def test_distances_are_mahalanobis():
    """Of independent numbers with known spread, the mean squared distance is 1; with a part of the modalities too."""
    names = ("flair", "t2")
    count = 6 + EACH * 2
    spread = np.linspace(0.5, 2, count)
    random = np.random.default_rng(0)
    typical = fit_typical(random.normal(3, spread, (1000, count)), names)
    others = random.normal(3, spread, (200, count))
    for given in (names, ("flair",), ("t2",)):
        squares = [typical.distance(numbers, given) ** 2 for numbers in others[:, columns(names, given)]]
        assert np.mean(squares) == pytest.approx(1, rel=0.06)


def test_saved_and_read(typical, tmp_path):
    student = replace(make_student(channels=ONE, optional=()), typical=typical)
    save_student(tmp_path, student, {})
    again = load_student(tmp_path, None, torch.device("cpu")).typical
    assert again.limits == typical.limits
    for numbers in described(4, count=5):
        assert again.distance(numbers, ONE) == typical.distance(numbers, ONE)
    assert (tmp_path / "student" / "config.json").stat().st_size < 10_000


@pytest.mark.parametrize(
    "wrong",
    [{"centre": np.zeros(1)}, {"modalities": ("a", "b")}, {"scale": np.zeros(23)}],
)
def test_impossible_numbers_are_refused(typical, wrong):
    with pytest.raises(ValueError, match="typical scans"):
        replace(typical, **wrong)


def test_resampling_and_slice_density_hardly_change_the_numbers():
    """The outermost pixels half outside, noise that alternates from pixel to pixel, every second slice only."""
    (scan,) = heads(6, count=1, size=128)
    image = (scan + 1) / 2
    inside = image[0, 0] > 0
    edge = inside & ~ndimage.binary_erosion(inside)
    chequered = 0.02 * np.where(np.indices(inside.shape).sum(axis=0) % 2, 1, -1)
    cut, noisy = np.where(edge, image * 0.5, image), np.where(inside, image + chequered, 0)
    before, cut, noisy = (describe_scan(2 * changed - 1) for changed in (image, cut, noisy))
    sharpness, rim_spread = 6 + 5, 6 + 8
    assert noisy[sharpness] == pytest.approx(before[sharpness], rel=0.1)
    assert cut[rim_spread] == pytest.approx(before[rim_spread], rel=1e-6)
    many = np.repeat(scan, 4, axis=0)  # 24 slices
    np.testing.assert_allclose(describe_scan(many), describe_scan(many[::2]), atol=1e-6)


def test_too_few_scans_give_no_limit():
    assert fit_typical(described(5, count=5), ONE) is None


def test_limits_of_scans_that_lack_modalities():
    """Independent numbers: fewer of them spread more, so that the limit of all modalities would flag too many."""
    names = ("flair", "t1", "t2")
    count = 6 + EACH * 3
    random = np.random.default_rng(1)
    typical = fit_typical(random.normal(0, 1, (600, count)), names, ("t1", "t2"))
    assert set(typical.limits) == {"flair,t1,t2", "flair,t1", "flair,t2", "flair"}
    assert typical.limits["flair,t1,t2"] < typical.limits["flair,t2"] < typical.limits["flair"]
    others = random.normal(0, 1, (400, count))
    for given in (names, ("flair", "t2"), ("flair",)):
        some = others[:, columns(names, given)]
        flagged = [typical.unusual(numbers, given) is not None for numbers in some]
        assert np.mean(flagged) == pytest.approx(0.03, abs=0.025)
