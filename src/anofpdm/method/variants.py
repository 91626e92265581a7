"""The paper's seven variants by name."""

from dataclasses import dataclass

from anofpdm.errors import MethodError


@dataclass(frozen=True)
class Variant:
    encoding: str
    signal: str = "error"
    last_map: bool = False


VARIANTS = {
    "anofpdm-ddim": Variant("ddim"),
    "anofpdm-ddpm": Variant("ddpm"),
    "anofpdm-ddim-last": Variant("ddim", last_map=True),
    "anofpdm-ddpm-last": Variant("ddpm", last_map=True),
    "gradient": Variant("ddim", "gradient"),
    "gradient-last": Variant("ddim", "gradient", last_map=True),
    "gradient-weighted": Variant("ddim", "gradient-weighted"),
}


def variant(name: str) -> Variant:
    if name not in VARIANTS:
        raise MethodError(f"unknown variant {name!r}; choose one of {', '.join(VARIANTS)}")
    return VARIANTS[name]
