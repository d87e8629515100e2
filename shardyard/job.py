"""`shardyard.job`, the name under which a script imports `shardyard.job`."""

import sys

from shardyard.script import job

sys.modules[__name__] = job
