"""anofpdm bench: how fast the method is on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from anofpdm.cli.options import Device, resolve_device
from anofpdm.cli.train import Preset


def bench(
    device: Device = "auto",
    preset: Annotated[Preset | None, typer.Option(help="Default: paper on a GPU, tiny on a CPU.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Slices. Default: 50 on a GPU, 4 on a CPU.")] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Pixels along a side. Default: 128 on a GPU, 64 on a CPU.")
    ] = None,
    levels: Annotated[str, typer.Option(help="How many noise levels to time, e.g. 600,60.")] = "",
    literal_levels: Annotated[
        int | None, typer.Option(min=1, max=600, help="Levels of the literal loop. Default: 60 on a GPU, 10 on a CPU.")
    ] = None,
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    scan: Annotated[bool, typer.Option(help="Time a whole scan by a student too.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here too.")] = None,
) -> None:
    """Time the forward process beside a literal loop of the authors' shape, in one run, on made-up weights."""
    import torch

    from anofpdm.bench.forward import Plan
    from anofpdm.util.distributed import set_local_device

    where = set_local_device(resolve_device(device))
    on_gpu = where.type == "cuda"
    torch.backends.cudnn.benchmark = True
    plan = Plan(
        device=where,
        preset=preset.value if preset else ("paper" if on_gpu else "tiny"),
        side=size or (128 if on_gpu else 64),
        batch=batch or (50 if on_gpu else 4),
        levels=_counts(levels or ("600,60" if on_gpu else "10")),
        literal_levels=literal_levels or (60 if on_gpu else 10),
        precision=precision,
    )
    _check(plan.preset, plan.side, json_file)
    _show(plan, json_file, scan)


def _counts(words: str) -> tuple[int, ...]:
    from anofpdm.method.evidence import AUTHORS_TOP

    parts = [word.strip() for word in words.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= AUTHORS_TOP for part in parts):
        wanted = f"write numbers from 1 to {AUTHORS_TOP}, e.g. {AUTHORS_TOP},60"
        raise typer.BadParameter(f"{words!r}: {wanted}", param_hint="--levels")
    return tuple(map(int, parts))


def _check(preset: str, side: int, json_file: Path | None) -> None:
    """Before any time is spent."""
    from anofpdm.network import unet

    divisor = unet.preset(preset, 1).side_divisor
    if side < divisor or side % divisor:
        raise typer.BadParameter(
            f"{side}: the {preset} network needs a multiple of {divisor}, e.g. {max(1, side // divisor) * divisor}",
            param_hint="--size",
        )
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"{json_file.parent}: no such folder; make it first", param_hint="--json")


def _show(plan: object, json_file: Path | None, scan: bool) -> None:
    import json
    import platform
    from dataclasses import asdict

    import torch
    from rich.console import Console
    from rich.table import Table

    from anofpdm.bench.forward import Plan, measure
    from anofpdm.bench.scan import SHAPE, scan_seconds
    from anofpdm.util.files import write_atomically

    assert isinstance(plan, Plan)
    name = torch.cuda.get_device_name(plan.device) if plan.device.type == "cuda" else platform.machine()
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{name}, torch {torch.__version__}: preset {plan.preset}, {plan.batch} slices of {plan.side} x {plan.side}"
    )
    columns = ("", "levels", "w", "s", "s/level", "faster", "than 600", "TFLOP/s", "of peak", "GiB")
    table = Table(*columns, box=None)
    with console.status("timing"):
        rows = list(measure(plan))
        seconds = scan_seconds(plan.device) if scan else None
    for row in rows:
        table.add_row(
            row.way,
            str(row.levels or ""),
            str(row.strengths or ""),
            f"{row.seconds:.2f}" if row.seconds >= 1 else f"{row.seconds:.3g}",
            f"{row.seconds / row.levels:.4f}" if row.levels else "",
            "" if row.times_faster is None else f"{row.times_faster:.2f}",
            f"{row.times_faster_than_600:.1f}",
            f"{row.tflops:.2f}" if row.tflops else "",
            "" if row.of_peak is None else f"{row.of_peak:.0%}",
            "" if row.memory_gib is None else f"{row.memory_gib:.2f}",
        )
    console.print(table)
    console.print(
        "w: guidance strengths at once; faster: times the literal loop at as many levels; than 600: at its 600"
    )
    size = " x ".join(map(str, SHAPE))
    if seconds is not None:
        what = f"a scan of {size}, two modalities, by a student, from files to a native-space mask"
        console.print(f"{what}: {seconds:.2f} s")
    if json_file is not None:
        said = {"machine": name, "torch": torch.__version__, "plan": {**asdict(plan), "device": str(plan.device)}}
        write_atomically(
            json_file,
            json.dumps({**said, "rows": [asdict(row) for row in rows], "scan_seconds": seconds}, indent=2).encode(),
        )
