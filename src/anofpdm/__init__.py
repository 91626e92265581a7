"""AnoFPDM: lesion masks in brain MRI from image-level labels only."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anofpdm.segment.model import load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    """`anofpdm.load`, fetched when it is asked for: importing the package stays light."""
    if name == "load":
        from anofpdm.segment.model import load

        return load
    raise AttributeError(f"module 'anofpdm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
