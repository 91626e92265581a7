"""The paper's seven variants by name."""

from dataclasses import dataclass

from anofpdm.options import Encoding, Signal


@dataclass(frozen=True)
class Variant:
    encoding: Encoding
    signal: Signal = Signal.ERROR
    last_map: bool = False


VARIANTS = {
    "anofpdm-ddim": Variant(Encoding.DDIM),
    "anofpdm-ddpm": Variant(Encoding.DDPM),
    "anofpdm-ddim-last": Variant(Encoding.DDIM, last_map=True),
    "anofpdm-ddpm-last": Variant(Encoding.DDPM, last_map=True),
    "gradient": Variant(Encoding.DDIM, Signal.GRADIENT),
    "gradient-last": Variant(Encoding.DDIM, Signal.GRADIENT, last_map=True),
    "gradient-weighted": Variant(Encoding.DDIM, Signal.GRADIENT_WEIGHTED),
}
