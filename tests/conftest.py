import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)  # the same examples every time; elsewhere, new ones are tried
if os.environ.get("CI"):
    settings.load_profile("ci")
