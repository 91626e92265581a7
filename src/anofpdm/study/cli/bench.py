"""anofpdm bench: speed of the method on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anofpdm.choices import Precision, Preset
from anofpdm.cli.options import Device, resolve_device
from anofpdm.cli.output import print_table

if TYPE_CHECKING:
    from rich.table import Table

    from anofpdm.study.bench.forward import BenchConfig, Timing


def bench(
    device: Device = "auto",
    preset: Annotated[
        Preset | None, typer.Option(help="Size of the network. Default: paper on a GPU, tiny on a CPU.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Number of slices. Default: 50 on a GPU, 4 on a CPU.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side of a slice (pixels). Default: 128 on a GPU, 64 on a CPU.")
    ] = None,
    levels: Annotated[
        str, typer.Option(help="Numbers of noise levels to time. Default: 600,60 on a GPU, 10 on a CPU.")
    ] = "",
    literal_levels: Annotated[
        int | None,
        typer.Option(min=1, max=600, help="Noise levels of the reference loop. Default: 60 on a GPU, 10 on a CPU."),
    ] = None,
    precision: Annotated[Precision, typer.Option(help="Precision of the network.")] = Precision.AUTO,
    scan: Annotated[bool, typer.Option(help="Also time a student on a whole scan.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")] = None,
) -> None:
    """Time the forward process, and a literal loop like the authors' as a reference, with random weights."""
    import torch

    from anofpdm.study.bench.forward import BenchConfig

    local_device = resolve_device(device)
    on_gpu = local_device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    config = BenchConfig(
        device=local_device,
        preset=preset or (Preset.PAPER if on_gpu else Preset.TINY),
        side=size or (128 if on_gpu else 64),
        batch=batch or (50 if on_gpu else 4),
        levels=_parse_levels(levels or ("600,60" if on_gpu else "10")),
        literal_levels=literal_levels or (60 if on_gpu else 10),
        precision=precision,
    )
    _check(config, json_file)
    _run(config, json_file, scan)


def _parse_levels(text: str) -> tuple[int, ...]:
    from anofpdm.method.evidence import AUTHORS_TOP

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= AUTHORS_TOP for part in parts):
        allowed = f"use numbers from 1 to {AUTHORS_TOP}, e.g. {AUTHORS_TOP},60"
        raise typer.BadParameter(f"{text!r}: {allowed}", param_hint="--levels")
    return tuple(map(int, parts))


def _check(config: "BenchConfig", json_file: Path | None) -> None:
    from anofpdm.network import config as networks

    divisor = networks.preset(config.preset, 1).side_divisor
    if config.side % divisor:
        suggestion = max(1, config.side // divisor) * divisor
        message = f"{config.side}: the {config.preset} network needs a multiple of {divisor}, e.g. {suggestion}"
        raise typer.BadParameter(message, param_hint="--size")
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"{json_file.parent}: no such folder; create it first", param_hint="--json")


def _run(config: "BenchConfig", json_file: Path | None, scan: bool) -> None:
    import platform

    import torch

    from anofpdm.study.bench.forward import measure
    from anofpdm.study.bench.scan_speed import SHAPE, scan_seconds
    from anofpdm.util.artifacts import encode
    from anofpdm.util.files import write_atomically

    name = torch.cuda.get_device_name(config.device) if config.device.type == "cuda" else platform.machine()
    slices = f"{config.batch} slices of {config.side} x {config.side}"
    print(f"{name}, torch {torch.__version__}: preset {config.preset}, {slices}", flush=True)
    timings = list(measure(config))
    seconds = scan_seconds(config.device) if scan else None
    print_table(_table(timings))
    print(
        "w: guidance strengths computed together; faster: speed-up over the literal loop at as many levels; "
        "than 600: over the literal loop at 600 levels"
    )
    if seconds is not None:
        size = " x ".join(map(str, SHAPE))
        print(f"student, scan of {size}, two modalities, from files to a native-space mask: {seconds:.2f} s")
    if json_file is not None:
        plan = {**vars(config), "device": str(config.device)}
        machine = {"machine": name, "torch": str(torch.__version__), "plan": plan}
        write_atomically(json_file, encode({**machine, "rows": timings, "scan_seconds": seconds}))


def _table(timings: "list[Timing]") -> "Table":
    from rich.table import Table

    table = Table("", "levels", "w", "s", "s/level", "faster", "than 600", "TFLOP/s", "of peak", "GiB", box=None)

    def cell(value: float | None, style: str = "") -> str:
        return format(value, style) if value else ""

    for row in timings:
        table.add_row(
            row.way,
            cell(row.levels),
            cell(row.strengths),
            cell(row.seconds, ".2f" if row.seconds >= 1 else ".3g"),
            cell(row.levels and row.seconds / row.levels, ".4f"),
            cell(row.times_faster, ".2f"),
            cell(row.times_faster_than_600, ".1f"),
            cell(row.tflops, ".2f"),
            cell(row.of_peak, ".0%"),
            cell(row.memory_gib, ".2f"),
        )
    return table
