"""How the probe makes records of steps: in full, or by the fast path for steps that repeat an earlier one."""
