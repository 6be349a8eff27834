"""What keeps MindSpore from littering the terminal and the working folder. It loads nothing."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile


def quiet_mindspore() -> None:
    """Prepare the environment for MindSpore: fewer words, no folders in the working folder.

    Call it before MindSpore is imported. Whatever the user has set already stays as it is:

    * ``GLOG_v``: MindSpore's warnings about itself are held back, its errors are not.
    * ``MS_OM_PATH``: a graph that does not compile leaves ``rank_0/om/analyze_fail.ir`` in the working folder; it
      goes into a temporary folder that is removed at exit.
    * ``MS_COMPILER_CACHE_PATH``: the same for the kernels of graph kernel fusion, ``akg_kernel_meta/``.
    """
    if "mindspore" not in sys.modules:
        os.environ.setdefault("GLOG_v", "3")
    # A cache that the user switched on is meant to outlive the process.
    redirected = ["MS_OM_PATH"] + ["MS_COMPILER_CACHE_PATH"] * (os.environ.get("MS_COMPILER_CACHE_ENABLE") != "1")
    redirected = [name for name in redirected if name not in os.environ]
    if redirected:
        folder = tempfile.mkdtemp(prefix="automap-mindspore-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ.update(dict.fromkeys(redirected, folder))
