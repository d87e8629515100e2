"""The file system of a box, built in a mount namespace of a test's own, over devices that are made up. Needs root."""

import json
import subprocess
import sys

from tests.faults.scene.machine import need

#: The host's /dev has two cards, as plain files; a box gets one of them. Says which device files that leaves.
BUILD = """
import json, os
from workers.sandbox.box.mounts import DEVICES, BoxFiles
from workers.sandbox.box.plan import BoxPlan
from workers.sandbox.box.syscalls import mount
mount("none", "/", None, 0x4000 | 0x40000)  # private
mount("made-up", "/dev", "tmpfs")
os.mkdir("/dev/nvidia-caps")
for name in (*DEVICES, "nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "sda", "nvidia-caps/nvidia-cap1"):
    open("/dev/" + name, "w").close()
files = BoxFiles(BoxPlan("full", (), (), (), None))
files.build()
files.add_devices(["nvidiactl", "nvidia-uvm", "nvidia1"])
print(json.dumps(sorted(name for name in os.listdir("/dev") if name.startswith(("nvidia", "sd")))))
"""


def test_a_box_has_the_files_of_leased_cards_and_of_no_others() -> None:
    need("mounts")
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", BUILD], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["nvidia-uvm", "nvidia1", "nvidiactl"]
