"""Where things lie."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIGHTCAST_BUILD", ROOT / "build")).resolve()
PACKAGE = BUILD / "python"
BINARY = pathlib.Path(os.environ.get("WEIGHTCAST_BINARY", BUILD / "weightcast"))
