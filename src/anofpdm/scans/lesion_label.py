"""Name and colour of the one label in a mask, and the table of labels that ITK-SNAP reads."""

LESION_VALUE = 1
LESION_NAME = "Lesion, suspected (AnoFPDM, research use)"
LESION_RGB = (230, 75, 53)


def label_table() -> bytes:
    """ITK-SNAP's label descriptions: index, red, green, blue, opacity, visibility in slices and in 3D, name."""
    rows = [(0, (0, 0, 0), 0, 0, 0, "Clear Label"), (LESION_VALUE, LESION_RGB, 1, 1, 1, LESION_NAME)]
    lines = [
        f"{value:5d} {red:5d} {green:4d} {blue:4d} {opacity:8g} {visible:2d} {mesh:2d}    {name!r}".replace("'", '"')
        for value, (red, green, blue), opacity, visible, mesh, name in rows
    ]
    return "\n".join(["# ITK-SnAP Label Description File", *lines, ""]).encode()
