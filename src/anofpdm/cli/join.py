"""anofpdm join: one table of the results of array jobs."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit

from anofpdm.cli.output import print_lines, problem_lines


def join(
    out: Annotated[Path, Argument(metavar="DIR", help="Folder that `anofpdm segment` wrote results into.")],
) -> None:
    """Write DIR/scans.csv with a row per scan, and check that all parts of an array job are complete (--part)."""
    from anofpdm.segment.join import TABLE, join_results

    joined = join_results(out)
    counts = [f"{len(joined.rows)} scans in {out / TABLE}"]
    counts += [f"{len(some)} {what}" for some, what in ((joined.failed, "failed"), (joined.missing, "missing")) if some]
    missing = (f"missing: {what}" for what in joined.missing)
    print_lines(*problem_lines((), joined.failed), *missing, ", ".join(counts))
    if joined.failed or joined.missing:
        raise Exit(3)
