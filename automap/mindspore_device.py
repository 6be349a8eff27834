"""The device that MindSpore runs on."""

from __future__ import annotations

from automap.quiet import quiet_mindspore

quiet_mindspore()

import mindspore as ms  # noqa: E402

from automap.errors import SourceError  # noqa: E402

#: What MindSpore calls its devices.
DEVICES = ("CPU", "GPU", "Ascend")


def present() -> list[str]:
    """The devices that MindSpore can use here."""
    return [name for name in DEVICES if name == ms.get_context("device_target") or _is_available(name)]


def use(name: str) -> None:
    """Let MindSpore run on a device from now on.

    Raises:
        SourceError: it is not there; the message lists those that are.
    """
    found = present()
    if name not in found:
        raise SourceError(f"MindSpore finds no {name} here: there is {' and '.join(found)}; give one of these", name)
    if name == ms.get_context("device_target"):  # it cannot be set any more once something has run
        return
    try:
        if hasattr(ms, "set_device"):
            ms.set_device(name)
        else:  # before MindSpore 2.5
            ms.set_context(device_target=name)
    except (RuntimeError, ValueError) as error:
        what = " ".join(str(error).split("\n")[0].split())
        raise SourceError(f"MindSpore cannot use {name}: {what}; there is {' and '.join(found)}", name) from error


def _is_available(name: str) -> bool:
    try:
        return bool(ms.hal.is_available(name))
    except (AttributeError, RuntimeError, ValueError):
        return False
